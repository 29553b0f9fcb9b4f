"""Checks of a checkpoint before a build: its kind, files, tensors, numbers, quantization and parameters."""
