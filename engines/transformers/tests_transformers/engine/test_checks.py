"""What is looked at before the embedded engine is loaded."""

from __future__ import annotations

import importlib.util

import pytest

from openai_bls_transformers.checks import problem


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problem() == ""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert problem().startswith("the embedded engine needs torch and transformers, which ")
