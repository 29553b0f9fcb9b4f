"""TensorRT-LLM through its LLM API. The only package that imports tensorrt_llm."""
