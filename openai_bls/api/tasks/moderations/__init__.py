"""Moderations: the classes of a text, by another Triton model."""
