"""Structured output by vLLM: grammars as it takes them, and how far each sequence has followed its own."""
