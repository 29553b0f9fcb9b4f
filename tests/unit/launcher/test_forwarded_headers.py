"""Flags for the headers that Triton forwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_bls.launcher.serving.forwarded_headers import forwarded_headers

HTTP = "--http-header-forward-pattern=(?i)(x-request-timeout|authorization)"
TRACE = "baggage|traceparent|tracestate"
GRPC = "--grpc-header-forward-pattern=(?i)(x-request-timeout|authorization)"


@pytest.mark.parametrize(
    ("environ", "extra", "flags"),
    [
        ({}, [], [flag.replace("|authorization", "") for flag in (HTTP, GRPC)]),
        ({"API_KEY": "k"}, [], [HTTP, GRPC]),
        ({"API_KEYS_FILE": "/keys"}, ["--grpc-header-forward-pattern", "x-.*"], [HTTP]),
        ({"API_KEY": "k", "TRITON_REQUIRES_KEY": "false"}, [HTTP], [GRPC.replace("|authorization", "")]),
        ({"TRACING": "true"}, [], [flag.replace("authorization", TRACE) for flag in (HTTP, GRPC)]),
        ({"TRACING": "1", "API_KEY": "k"}, [HTTP], [GRPC.replace("tion)", f"tion|{TRACE})")]),
        ({"API_KEY": "k", "HTTP_PORT": "no number"}, [], []),
    ],
)
def test_flags(environ: dict[str, str], extra: list[str], flags: list[str]) -> None:
    given = {f"OPENAI_BLS_{name}": value for name, value in environ.items()}
    assert forwarded_headers(Path("model_repository"), extra, given) == flags


def test_a_repository_without_openai_bls(tmp_path: Path) -> None:
    assert forwarded_headers(tmp_path, [], {"OPENAI_BLS_API_KEY": "k"}) == []
