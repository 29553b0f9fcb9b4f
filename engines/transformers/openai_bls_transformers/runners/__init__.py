"""Runners: steps of many sequences, by continuous batching or the model's own cache. Imports speculation and below."""
