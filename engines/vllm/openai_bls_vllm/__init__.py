"""vLLM as an engine; the only package that imports vllm. Imports engines, output and core."""
