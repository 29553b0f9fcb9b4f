"""The checkpoint that the engines' tests have, to build from."""

from __future__ import annotations

from tests.unit.engines.conftest import checkpoint

__all__ = ["checkpoint"]
