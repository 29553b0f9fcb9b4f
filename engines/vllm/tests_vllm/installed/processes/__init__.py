"""Processes of the real vLLM, and tests of several: two ranks, on one machine and on two."""
