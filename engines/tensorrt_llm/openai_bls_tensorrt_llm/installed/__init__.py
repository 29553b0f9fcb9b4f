"""The installed TensorRT-LLM: its calls, what its versions can, and what the engine knows of it."""
