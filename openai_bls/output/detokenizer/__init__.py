"""Detokenizers: token ids to text, exact at every step."""
