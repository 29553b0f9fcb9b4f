"""Classify: probabilities of a model's classes, or rewards, for texts and conversations."""
