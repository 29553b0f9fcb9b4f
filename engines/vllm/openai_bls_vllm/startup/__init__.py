"""Arguments, environment and log of a start of vLLM."""
