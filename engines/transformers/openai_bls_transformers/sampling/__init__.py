"""Sampling of next tokens: its arithmetic, and logits processors. Imports no other folder of the engine."""
