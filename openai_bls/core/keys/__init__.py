"""API keys: their file, read again when it changes, and their limits."""
