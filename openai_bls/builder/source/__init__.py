"""Sources of checkpoints: directories, GGUF files, the hub, and packages of the index. Imports checkpoint."""
