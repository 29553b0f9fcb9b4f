"""TensorRT-LLM engines: plans, memory estimates and builds."""
