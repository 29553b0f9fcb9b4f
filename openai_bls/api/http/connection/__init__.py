"""Connections of clients: uvicorn's, with bounds on what comes, in slices that share the event loop."""
