"""Engines behind a real server: other backends, processes of their own, several ranks."""
