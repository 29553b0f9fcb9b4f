"""Fields that pass through to the real vLLM."""
