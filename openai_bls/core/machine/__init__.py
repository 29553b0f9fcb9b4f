"""The machine: its memory, and its GPUs by nvidia-smi."""
