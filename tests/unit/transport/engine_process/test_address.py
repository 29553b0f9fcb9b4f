from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.manifest import EngineLoadError
from openai_bls.transport.engine_process.address import EngineAddress, parse


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("unix:/run/openai_bls/engine.sock", EngineAddress("unix", path="/run/openai_bls/engine.sock")),
        ("unix:@name", EngineAddress("unix", path="@name")),
        ("tls://engine.svc.cluster.local:8443", EngineAddress("tls", host="engine.svc.cluster.local", port=8443)),
        ("tls://[::1]:1", EngineAddress("tls", host="::1", port=1)),
    ],
)
def test_forms(text: str, found: EngineAddress) -> None:
    assert parse(text) == found
    assert str(found) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("unix:engine.sock", "an absolute path is needed"),
        ("unix:", "an absolute path is needed"),
        ("unix:/" + "a" * 107, "more than 107 bytes"),
        ("tcp://host:80", "never plain TCP"),
        ("http://host:80", "never plain TCP"),
        ("tls://host", "unix:/path or tls://host:port"),
        ("tls://host:0", "unix:/path or tls://host:port"),
        ("tls://host:65536", "unix:/path or tls://host:port"),
        ("tls://user@host:1", "unix:/path or tls://host:port"),
        ("/run/engine.sock", "unix:/path or tls://host:port"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    with pytest.raises(EngineLoadError, match=reason):
        parse(text)


@given(st.text())
def test_any_text_is_an_address_or_one_sentence(text: str) -> None:
    for begin in ("", "unix:", "unix:/", "tls://"):
        with contextlib.suppress(EngineLoadError):
            found = parse(begin + text)
            assert parse(str(found)) == found
