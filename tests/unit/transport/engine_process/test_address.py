from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.manifest import EngineLoadError
from openai_bls.transport.engine_process.address import EngineAddress, parse


@pytest.mark.parametrize(("text", "path"), [("unix:/run/a/engine.sock", "/run/a/engine.sock"), ("unix:@name", "@name")])
def test_forms(text: str, path: str) -> None:
    assert parse(text) == EngineAddress(path)
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["unix:engine.sock", "unix:", "unix:/", "unix:/" + "a" * 107, "tcp://host:80", "tls://host:80", "/run/engine.sock"],
)
def test_refusals(text: str) -> None:
    with pytest.raises(EngineLoadError):
        parse(text)


@given(st.text())
def test_any_text_is_an_address_or_refused(text: str) -> None:
    for begin in ("", "unix:", "unix:/", "unix:@"):
        with contextlib.suppress(EngineLoadError):
            found = parse(begin + text)
            assert parse(str(found)) == found
