"""Batches: files of requests, answered beside the others, with progress and results on disk."""
