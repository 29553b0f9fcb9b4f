"""GGUF files: described as a checkpoint folder, and dequantized into safetensors. Imports checkpoint."""
