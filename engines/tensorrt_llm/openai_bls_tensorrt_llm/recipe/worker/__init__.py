"""Worker process of a build: its progress and failures. Imports memory."""
