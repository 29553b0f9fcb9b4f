"""The embedded engine: transformers' continuous batching, on a CPU or a GPU. Imports engines and below."""
