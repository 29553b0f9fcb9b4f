"""Processes of the server from outside: their memory, files and CPU time."""
