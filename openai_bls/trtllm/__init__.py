"""TensorRT-LLM: building engines, estimating them, running them. Only `api` imports it."""
