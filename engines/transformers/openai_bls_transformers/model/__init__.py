"""Model: checkpoint, attention, fused layers, FP8 weights and LoRA adapters. Imports gpu."""
