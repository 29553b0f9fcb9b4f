"""Clients of vLLM behind one interface: the engine core one level below `AsyncLLM`, and `AsyncLLM`."""
