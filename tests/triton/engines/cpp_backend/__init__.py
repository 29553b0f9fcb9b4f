"""The stand-in for TensorRT-LLM's C++ backend: `model.py` takes the place of its library."""
