"""Benchmarks of the llama.cpp engine; `benchmarks` has what they share with others.

::

    laptop.py           command: llama.cpp's own server and the engine over it, on a CPU
"""
