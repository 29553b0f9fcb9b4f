"""Listening sockets of /v1 and acceptors of their connections, plain and with TLS."""
