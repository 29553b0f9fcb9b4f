"""vLLM over several machines: the first serves the engine's socket, the others run workers.

May import core.
"""
