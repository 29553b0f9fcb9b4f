"""Options of a build: of every engine, of TensorRT-LLM, of vLLM, and of adapters. Imports nothing of its siblings."""
