"""The embedded engine: transformers' continuous batching, on a CPU or a GPU. The only package that imports torch."""
