"""Paths of Triton's HTTP port that /v1's port has too."""
