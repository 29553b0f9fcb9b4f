"""`serve`: plan, foreground loop and what it prints. Imports all of the launcher but the smoke test."""
