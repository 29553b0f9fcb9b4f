"""Folders of the checkout that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "demo" / "checkpoint"
DOCS = ROOT / "docs"
CACHE = ROOT / ".cache" / "tests"
"""Files that one run of the tests leaves to the next, each told by its content and made anew where it is missing."""
COMPILED = CACHE / "triton"
"""Kernels that Triton's compiler has compiled, which finds them by their sources and options."""
