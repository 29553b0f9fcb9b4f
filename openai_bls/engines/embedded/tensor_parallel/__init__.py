"""Tensor parallelism of the embedded engine: each layer shared out over several processes, one for each GPU."""
