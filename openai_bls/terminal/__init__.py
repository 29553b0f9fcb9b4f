"""Clients for the terminal: a chat, and a load test, for this server or any other with OpenAI's API.

They know the server by its URL alone, so of the library they import nothing but `core` and how the launcher writes
lines and errors.
"""
