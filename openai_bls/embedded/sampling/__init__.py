"""Sampling of next tokens: its arithmetic, logits processors, grammars. Imports no other folder of the engine."""
