"""GPU kernels: attention over the paged cache, products of few rows, FP8. Imports no other folder of the engine."""
