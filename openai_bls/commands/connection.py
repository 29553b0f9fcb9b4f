"""Options that name a running server: its URL, key, model and certificates."""

from __future__ import annotations

import math
import os
import ssl
from argparse import ArgumentParser, ArgumentTypeError, Namespace, _ArgumentGroup
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from openai_bls.launcher.errors import LaunchError

DEFAULT_URL = "http://127.0.0.1:9000/v1"
_KEY_VARIABLES = ("OPENAI_BLS_API_KEY", "OPENAI_API_KEY")


class Connection(NamedTuple):
    """Server that is asked."""

    url: str
    """URL of /v1, without a slash at the end."""
    api_key: str
    """Empty for none."""
    timeout: float
    """Seconds until an answer begins, and between its pieces."""
    tls: ssl.SSLContext | bool = True
    """Verification of https URLs, with the client's own certificate if it has one; True is the client's default."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers of each request."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


def add_url(parser: ArgumentParser | _ArgumentGroup, *, default: str | None) -> None:
    """Add --url, in any form that `base_url` reads."""
    said = "%(default)s" if default else "none: a server of its own is started"
    parser.add_argument(
        "--url", type=base_url, default=default, help=f"of the server, host:port or with http and /v1 (default: {said})"
    )


def add_model(parser: ArgumentParser) -> None:
    """Add --model."""
    parser.add_argument("--model", help="the served name to ask for (default: the first of /v1/models)")


def add_key(parser: ArgumentParser) -> None:
    """Add --api-key-file; `api_key` reads it, and the environment."""
    parser.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help=f"a file with the key (default: {', then '.join(_KEY_VARIABLES)}; without these none)",
    )


def add_certificates(parser: ArgumentParser) -> None:
    """Add --ca-file, --client-certfile and --client-keyfile; `tls` reads them."""
    parser.add_argument("--ca-file", type=Path, metavar="FILE", help="CAs of the certificate of https URLs, PEM")
    parser.add_argument(
        "--client-certfile", type=Path, metavar="FILE", help="certificate of the client, where a server wants one, PEM"
    )
    parser.add_argument(
        "--client-keyfile", type=Path, metavar="FILE", help="its private key, PEM (default: in --client-certfile)"
    )


def above_zero(text: str) -> float:
    """A finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def base_url(text: str) -> str:
    """URL of /v1: of a host and a port alone it is HTTP, and a server without a path gets /v1."""
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or any(character.isspace() for character in text):
        raise ArgumentTypeError(f"{text!r} is not a URL such as {DEFAULT_URL}, nor a host and a port")
    url = parts.geturl().rstrip("/")
    return f"{url}/v1" if parts.path in ("", "/") else url


def connection(options: Namespace) -> Connection:
    """The connection that a command line asks for.

    Raises:
        LaunchError: the file of the key cannot be read, or is empty, or a certificate cannot be used.
    """
    return Connection(options.url, api_key(options), options.timeout, tls(options) or True)


def api_key(options: Namespace) -> str:
    """API key of a command line: that of --api-key-file, else of the environment; empty is none.

    Raises:
        LaunchError: the file cannot be read, or is empty, or the key cannot be sent.
    """
    path: Path | None = options.api_key_file
    if path is None:
        key = next((value for name in _KEY_VARIABLES if (value := os.environ.get(name))), "")
    else:
        try:
            key = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise LaunchError(f"the key in {path} cannot be read: {getattr(error, 'strerror', error)}") from None
        if not key:
            raise LaunchError(f"{path} has no key")
    if not key.isascii() or any(character.isspace() for character in key):
        raise LaunchError("the API key has characters that a header cannot carry")
    return key


def tls(options: Namespace) -> ssl.SSLContext | None:
    """Verification of https URLs by --ca-file, with the client's certificate; None if a command line has neither.

    Raises:
        LaunchError: a certificate cannot be used.
    """
    authorities, certificate, key = options.ca_file, options.client_certfile, options.client_keyfile
    if certificate is None and key is not None:
        raise LaunchError("--client-keyfile needs --client-certfile")
    if authorities is None and certificate is None:
        return None
    try:
        context = ssl.create_default_context(cafile=authorities)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except OSError as error:
        named = ", ".join(str(file) for file in (authorities, certificate, key) if file is not None)
        raise LaunchError(f"no certificate, or no key of it, in PEM form: {named}: {error}") from None
    return context
