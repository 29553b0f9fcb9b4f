"""Versions of vLLM."""

from __future__ import annotations

import logging

import pytest

from openai_bls.core.manifest import EngineLoadError
from openai_bls_vllm.versions import NEWEST, OLDEST, Version, require_version


@pytest.mark.parametrize("text", ["0.24.0", "0.26.0rc1", "0.32.0+cpu", "0.33.1"])
def test_known_ones_pass(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert OLDEST <= require_version(text) <= NEWEST
    assert not caplog.records


def test_a_newer_one_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert require_version("1.2.0") == Version(1, 2)
    assert "1.2.0" in caplog.text


@pytest.mark.parametrize("text", ["0.23.9", "0.9.1", "dev"])
def test_others_are_refused(text: str) -> None:
    with pytest.raises(EngineLoadError, match=text):
        require_version(text)
