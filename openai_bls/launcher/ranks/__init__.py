"""Ranks of an engine on several GPUs or machines: their number, and the jobs that start them."""
