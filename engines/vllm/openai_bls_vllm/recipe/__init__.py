"""Engines of vLLM: the plan that vLLM's own configuration checks, the self-test, and vLLM's environment."""
