"""Web pages on the port of /v1: static files that a browser runs, which talk to the API like any other client."""
