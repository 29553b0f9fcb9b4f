"""Models as their checkpoints describe them: family and shape. Imports nothing of its siblings."""
