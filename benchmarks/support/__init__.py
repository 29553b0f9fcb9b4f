"""What several benchmarks use: an engine in this process, its checkpoints, conditions, options and tables."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Folder of the repository."""
