"""Model `tensorrt_llm`: the engine behind the official tensors."""
