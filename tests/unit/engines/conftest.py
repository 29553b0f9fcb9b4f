"""Fixtures of the engines' tests."""

from __future__ import annotations

from tests.engine_contract.fixtures import checkpoint, folder, start, version_dir

__all__ = ["checkpoint", "folder", "start", "version_dir"]
