"""Batches: files of requests, answered in the background, with progress and results on disk."""
