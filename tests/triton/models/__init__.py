"""Models of users on a real server: chat models, adapters, images, guards, several in one server."""
