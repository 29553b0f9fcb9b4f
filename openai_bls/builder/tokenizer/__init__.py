"""Tokenizer of a checkpoint as a tokenizer.json, made where the checkpoint has none. Imports placing and checkpoint."""
