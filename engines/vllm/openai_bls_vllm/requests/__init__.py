"""Requests in the terms of vLLM, and the deltas of their outputs."""
