"""Fixtures of the embedded engine's tests: those of the engines."""

from __future__ import annotations

from tests.unit.engines.conftest import checkpoint, folder, start, version_dir

__all__ = ["checkpoint", "folder", "start", "version_dir"]
