"""Index of the models in the tritonserver around this one, asked over its own HTTP or gRPC front end."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

from openai_bls.transport.triton_http import TritonHttp
from openai_bls.triton_models.server.load_failure import load_failure
from openai_bls.triton_models.server.process import NoGrpcError, control_headers, grpc_address, http_address

# Seconds that one answer may take; a server that is loading models over HTTP may be slow.
_TIMEOUT_S = 5.0

_GONE = (400, 404)
# Reasons of a model that is not there on purpose.
_NOT_FAILED = ("", "unloaded")

Config = dict[str, Any]
"""A model's configuration as JSON, completed by the server."""


class ModelIndexError(Exception):
    """The server does not tell; the message is the end of a sentence."""


class ModelIndex(Protocol):
    """Names and configurations of the models that are ready, and why others are not."""

    async def ready(self) -> list[str]:
        """Names of the models that are ready.

        Raises:
            ModelIndexError: the server does not tell.
        """

    async def failures(self) -> dict[str, str]:
        """Models that failed to load, and why: one line each.

        Raises:
            ModelIndexError: the server does not tell.
        """

    async def configs(self, names: Sequence[str]) -> dict[str, Config]:
        """Configurations by name; a model that is not ready any more has none.

        Raises:
            ModelIndexError: the server does not tell.
        """


def model_index(pid: int | None = None) -> ModelIndex | None:
    """The index of the tritonserver `pid`, by default the parent; None if it has neither HTTP nor gRPC to ask."""
    pid = pid or os.getppid()
    address = http_address(pid)
    if address is not None:
        return HttpModelIndex(*address, control_headers(pid, "http"))
    try:
        return GrpcModelIndex(grpc_address(pid), control_headers(pid, "grpc"))
    except NoGrpcError:
        return None


def front_end(pid: int) -> TritonHttp | None:
    """HTTP front end of the tritonserver `pid`; None if it has none."""
    address = http_address(pid)
    return None if address is None else TritonHttp(*address, control_headers(pid, "http"))


class _BlockingIndex(ABC):
    """Index whose questions block: each is asked on a thread."""

    async def ready(self) -> list[str]:
        """Names of the models that are ready; raises ModelIndexError."""
        return await asyncio.to_thread(self._ready)

    async def failures(self) -> dict[str, str]:
        """Models that failed to load, and why; raises ModelIndexError."""
        models = await asyncio.to_thread(self._index)
        found = {model["name"]: model.get("reason", "") for model in models if model.get("state") == "UNAVAILABLE"}
        return {name: load_failure(reason) for name, reason in found.items() if reason not in _NOT_FAILED}

    async def configs(self, names: Sequence[str]) -> dict[str, Config]:
        """Configurations by name; raises ModelIndexError."""
        return await asyncio.to_thread(self._configs, names) if names else {}

    @abstractmethod
    def _index(self) -> list[dict[str, str]]:
        """Versions of all models: name, state and reason."""

    def _ready(self) -> list[str]:
        return list(dict.fromkeys(model["name"] for model in self._index() if model.get("state") == "READY"))

    @abstractmethod
    def _config(self, name: str) -> Config | None:
        """Configuration of a model; None if it is gone."""

    def _configs(self, names: Sequence[str]) -> dict[str, Config]:
        answers = {name: self._config(name) for name in names}
        return {name: config for name, config in answers.items() if config is not None}


class HttpModelIndex(_BlockingIndex):
    """Index over HTTP. No connection stays open: a server that stops waits for them.

    Args:
        host: host of Triton's HTTP front end.
        port: port of Triton's HTTP front end.
        headers: headers that the front end requires of such requests.
    """

    def __init__(self, host: str, port: int, headers: Mapping[str, str] | None = None) -> None:
        self._host = host
        self._port = port
        self._headers = {**(headers or {}), "Connection": "close"}

    def _index(self) -> list[dict[str, str]]:
        models: list[dict[str, str]] = self._ask("POST", "/v2/repository/index", b"{}")
        return models

    def _config(self, name: str) -> Config | None:
        config: Config | None = self._ask("GET", f"/v2/models/{quote(name, safe='')}/config")
        return config

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        """The JSON of an answer; None if the model is gone."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            connection.request(method, path, body, self._headers)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ModelIndexError(f"Triton's HTTP port {self._port} does not answer ({error})") from None
        finally:
            connection.close()
        if method == "GET" and response.status in _GONE:
            return None
        if response.status != 200:
            text = answer[:200].decode(errors="replace")
            raise ModelIndexError(f"Triton's HTTP port {self._port} answers {response.status} to {path}: {text}")
        try:
            return json.loads(answer)
        except ValueError as error:
            raise ModelIndexError(f"Triton's HTTP port {self._port} answers to {path}: {error}") from None


class GrpcModelIndex(_BlockingIndex):
    """Index over gRPC, for servers without HTTP.

    Args:
        address: host and port of Triton's gRPC front end.
        headers: headers that the front end requires of such requests.
    """

    def __init__(self, address: str, headers: Mapping[str, str] | None = None) -> None:
        self._address = address
        self._headers = headers or {}

    def _index(self) -> list[dict[str, str]]:
        models: list[dict[str, str]] = self._ask("get_model_repository_index").get("models", [])
        return models

    def _config(self, name: str) -> Config | None:
        answer = self._ask("get_model_config", name)
        return None if answer is None else answer["config"]

    def _ask(self, method: str, *names: str) -> Any:
        """The JSON of an answer; None if the model is gone."""
        # Not at the top: gRPC costs memory and time, and most servers have HTTP.
        try:
            from tritonclient.grpc import InferenceServerClient
            from tritonclient.utils import InferenceServerException
        except ImportError as error:
            raise ModelIndexError(f"a package is missing to ask it over gRPC ({error})") from None
        with InferenceServerClient(self._address) as client:
            try:
                return getattr(client, method)(*names, headers=self._headers, as_json=True, client_timeout=_TIMEOUT_S)
            except InferenceServerException as error:
                if names and error.status() in ("StatusCode.NOT_FOUND", "StatusCode.INVALID_ARGUMENT"):
                    return None
                raise ModelIndexError(f"Triton's gRPC port {self._address} says: {error.message()}") from None
