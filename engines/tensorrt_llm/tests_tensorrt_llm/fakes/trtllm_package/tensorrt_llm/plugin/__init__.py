"""`tensorrt_llm.plugin`."""
