"""What a checkpoint holds, looked at before a build: its files, its tensors, and the parameters of its model."""
