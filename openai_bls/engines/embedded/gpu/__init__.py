"""GPU kernels and CUDA graphs of the embedded engine."""
