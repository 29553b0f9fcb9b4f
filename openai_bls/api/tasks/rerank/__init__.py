"""Rerank and score: how well texts fit each other, by other Triton models."""
