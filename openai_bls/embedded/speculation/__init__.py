"""Speculative decoding: drafts by n-grams or a draft model, and their verification. Imports sampling, model and gpu."""
