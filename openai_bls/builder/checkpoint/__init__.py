"""What a checkpoint holds, looked at before a build: its kind, files, tensors, quantization and parameters."""
