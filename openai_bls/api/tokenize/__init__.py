"""Tokenization: tokenize and detokenize."""
