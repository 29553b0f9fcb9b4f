"""Self-test of a loaded engine, and the trials of the runners that it decides. Imports runners and below."""
