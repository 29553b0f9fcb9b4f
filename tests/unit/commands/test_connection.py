"""Options that name a running server: URLs, keys and certificates, and what cannot be used of them."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

import pytest

from openai_bls.commands import connection
from openai_bls.launcher.errors import LaunchError
from tests.certificates import Authority


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BLS_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def parsed(*words: str) -> Namespace:
    parser = ArgumentParser()
    connection.add_url(parser, default=connection.DEFAULT_URL)
    connection.add_key(parser)
    connection.add_certificates(parser)
    parser.set_defaults(timeout=1.0)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("host:9000", "http://host:9000/v1"),
        ("http://host:9000/", "http://host:9000/v1"),
        ("https://host/v1/", "https://host/v1"),
        ("https://host/proxy/v1", "https://host/proxy/v1"),
    ],
)
def test_urls(given: str, url: str) -> None:
    assert connection.base_url(given) == url


@pytest.mark.parametrize("given", ["", "ftp://host", "http://", "host:0", "host:port", "host name:9000"])
def test_no_url(given: str) -> None:
    with pytest.raises(ArgumentTypeError):
        connection.base_url(given)


def test_a_key_of_a_file_goes_before_one_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connection.connection(parsed()).headers == {}
    monkeypatch.setenv("OPENAI_API_KEY", "second")
    assert connection.api_key(parsed()) == "second"
    monkeypatch.setenv("OPENAI_BLS_API_KEY", "first")
    assert connection.api_key(parsed()) == "first"
    (tmp_path / "key").write_text(" of-a-file\n")
    found = connection.connection(parsed("--api-key-file", str(tmp_path / "key")))
    assert found.headers == {"Authorization": "Bearer of-a-file"}


@pytest.mark.parametrize("content", [None, b"", b"two words", "Schlüssel".encode(), b"\xff"])
def test_a_key_that_cannot_be_sent(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(LaunchError):
        connection.api_key(parsed("--api-key-file", str(tmp_path / "key")))


def test_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = map(str, authority.issue("client"))
    assert connection.tls(parsed()) is None
    found = connection.tls(
        parsed("--ca-file", str(authority.file), "--client-certfile", certificate, "--client-keyfile", key)
    )
    assert found is not None
    assert len(found.get_ca_certs()) == 1
    for words in (
        ["--client-keyfile", key],
        ["--client-certfile", certificate],
        ["--client-certfile", "/none"],
        ["--ca-file", key],
    ):
        with pytest.raises(LaunchError):
            connection.tls(parsed(*words))
