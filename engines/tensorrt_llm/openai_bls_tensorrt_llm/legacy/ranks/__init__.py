"""Ranks of TensorRT-LLM: who starts them, their processes, and the watch on them."""
