"""Models as their checkpoints describe them: family, shape and quantization. Imports nothing of its siblings."""
