"""Readiness of a server, its models and /v1, asked over HTTP."""

from __future__ import annotations

import functools
import http.client
import json
import ssl
import time
from typing import TYPE_CHECKING

from openai_bls.launcher.checks import OPENAI_MODEL, model_names
from openai_bls.launcher.tritonserver.command import flag_values
from openai_bls.launcher.tritonserver.ports import local_host

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from openai_bls.launcher.tritonserver.ports import Ports

_TIMEOUT_SECONDS = 2.0
LISTING_SECONDS = 2.0
_LISTING_RETRY_SECONDS = 0.05


def get(host: str, port: int, path: str, *, tls: bool = False, api_key: str = "") -> bytes | None:
    """The body of a GET that was answered with 200, else None."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else None
    status, body = ask(host, port, "GET", path, headers, tls=tls)
    return body if status == 200 else None


def ask(
    host: str, port: int, method: str, path: str, headers: Mapping[str, str] | None = None, *, tls: bool = False
) -> tuple[int | None, bytes]:
    """Status and body of the answer to a request; the status is None if there is no answer."""
    address = local_host(host)
    if tls:
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            address, port, timeout=_TIMEOUT_SECONDS, context=_unverified()
        )
    else:
        connection = http.client.HTTPConnection(address, port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return None, b""
    finally:
        connection.close()


@functools.cache
def _unverified() -> ssl.SSLContext:
    """Context for a server on this machine, which has no secret to be told: its certificate is of its public name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def expected_models(repository: Path, args: Sequence[str] = (), further: Sequence[Path] = ()) -> list[str]:
    """The models that a server started with `args` loads from `repository`, then those of `further` ones."""
    names = [name for path in (repository, *further) for name in model_names(path)]
    if flag_values(args, "--model-control-mode")[-1:] == ["explicit"]:
        chosen = flag_values(args, "--load-model")
        return names if "*" in chosen else [name for name in names if name in chosen]
    return names


def serves_openai(names: Sequence[str], ports: Ports) -> bool:
    """True if these models open a /v1 port."""
    return OPENAI_MODEL in names and ports.openai != 0


def not_ready(
    host: str, ports: Ports, names: Sequence[str], *, openai: bool, openai_host: str | None = None
) -> list[str]:
    """Parts that are not ready yet: `tritonserver`, names of models, `/v1`."""
    if get(host, ports.http, "/v2/health/ready") is None:
        return ["tritonserver"]
    missing = [name for name in names if get(host, ports.http, f"/v2/models/{name}/ready") is None]
    if openai and get(openai_host or host, ports.openai, "/health", tls=ports.tls) is None:
        missing.append("/v1")
    return missing


def served_models(host: str, ports: Ports, engines: int = 1, api_key: str = "") -> list[str]:
    """The names of models that generate, of /v1/models, the default model's first; none if it wants another key.

    /v1 is ready with the default engine, and the others come a moment later: that moment is waited for.

    Args:
        host: address that the server is bound to.
        ports: ports of the server.
        engines: number of engines to wait for, those that generate nothing among them.
        api_key: key of the server; empty is none.
    """
    deadline = time.monotonic() + LISTING_SECONDS
    while True:
        try:
            cards = json.loads(get(host, ports.openai, "/v1/models", tls=ports.tls, api_key=api_key) or b"")["data"]
            # Not other Triton models, which have no context.
            cards = [card for card in cards if card["max_model_len"] is not None]
            names = [str(card["id"]) for card in cards if card["task"] == "generate"]
            models = {card["root"] for card in cards if card["parent"] is None}
        except (ValueError, LookupError, TypeError):
            return []
        if len(models) >= engines or time.monotonic() > deadline:
            return names
        time.sleep(_LISTING_RETRY_SECONDS)
