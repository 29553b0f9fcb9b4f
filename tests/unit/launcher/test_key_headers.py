"""Flags for the headers that hold API keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_bls.launcher.key_headers import forwarded_keys

HTTP = "--http-header-forward-pattern=(?i)authorization"
GRPC = "--grpc-header-forward-pattern=(?i)authorization"


@pytest.mark.parametrize(
    ("environ", "extra", "flags"),
    [
        ({}, [], []),
        ({"API_KEY": "k"}, [], [HTTP, GRPC]),
        ({"API_KEYS_FILE": "/keys"}, ["--grpc-header-forward-pattern", "x-.*"], [HTTP]),
        ({"API_KEY": "k", "TRITON_REQUIRES_KEY": "false"}, [], []),
        ({"API_KEY": "k", "HTTP_PORT": "no number"}, [], []),
    ],
)
def test_flags(environ: dict[str, str], extra: list[str], flags: list[str]) -> None:
    given = {f"OPENAI_BLS_{name}": value for name, value in environ.items()}
    assert forwarded_keys(Path("model_repository"), extra, given) == flags


def test_a_repository_without_openai_bls(tmp_path: Path) -> None:
    assert forwarded_keys(tmp_path, [], {"OPENAI_BLS_API_KEY": "k"}) == []
