"""Speculative decoding: drafts by n-grams and `prediction`, and their verification. Imports sampling, model and gpu."""
