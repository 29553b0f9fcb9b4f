"""Sizes of vLLM's steps while short prompts wait."""
