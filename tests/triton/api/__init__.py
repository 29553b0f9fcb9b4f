"""The API on a real server: every field, endpoint and path of it, most on one server that these files share."""
