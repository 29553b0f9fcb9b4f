"""The real vLLM behind the real Triton."""
