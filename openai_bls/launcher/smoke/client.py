"""HTTP and server-sent events with the standard library."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import urlsplit

from openai_bls.launcher.smoke.outcome import CheckFailedError, NotSupportedError

_EXCERPT = 200

# How refusals read that have no code of their own.
_OF_THE_ENGINE = re.compile(
    r"not supported by (the|this) engine|has no embeddings"
    r"|this server's engine (does not have|has no)|at most 0 are supported"
)


@dataclass(frozen=True)
class Reply:
    """An answer, read to its end."""

    status: int
    content_type: str
    body: bytes

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            CheckFailedError: it is none.
        """
        try:
            return json.loads(self.body)
        except ValueError:
            raise CheckFailedError(f"HTTP {self.status} and no JSON: {self.excerpt()}") from None

    def excerpt(self) -> str:
        """The beginning of the body, on one line."""
        return " ".join(self.body.decode("utf-8", "replace").split())[:_EXCERPT]


class HttpServer:
    """One of the server's ports.

    Args:
        url: scheme, host and port, and a path that goes before every path asked for.
        headers: of every request.
        timeout: seconds that the server may be silent.
    """

    def __init__(self, url: str, headers: dict[str, str], timeout: float) -> None:
        self._url = url
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._path = parts.path.rstrip("/")
        self._headers = headers
        self._timeout = timeout

    def ask(self, method: str, path: str, body: Any = None) -> Reply:
        """The answer to a request, whatever its status; `body` is sent as JSON, bytes as they are.

        Raises:
            CheckFailedError: the server cannot be reached, or hangs up.
        """
        connection = self._connect()
        try:
            response = self._send(connection, method, path, body)
            return Reply(response.status, response.headers.get_content_type(), response.read())
        except (OSError, http.client.HTTPException) as error:
            raise CheckFailedError(self._lost(error)) from None
        finally:
            connection.close()

    def get(self, path: str) -> Reply:
        """The answer to a GET, which must be a 200."""
        return accepted(self.ask("GET", path))

    def post(self, path: str, body: Any) -> Any:
        """The JSON answer to a POST, which must be a 200."""
        return accepted(self.ask("POST", path, body)).json()

    def events(self, path: str, body: Any) -> Iterator[str]:
        """The data of every server-sent event that answers a POST."""
        connection = self._connect()
        try:
            response = self._send(connection, "POST", path, body)
            if response.status != 200:
                accepted(Reply(response.status, response.headers.get_content_type(), response.read()))
            if response.headers.get_content_type() != "text/event-stream":
                raise CheckFailedError(f"a stream of the type {response.headers.get_content_type()}")
            for line in response:
                if line.startswith(b"data:"):
                    yield line[5:].strip().decode()
        except (OSError, http.client.HTTPException) as error:
            raise CheckFailedError(self._lost(error)) from None
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=self._timeout)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any
    ) -> http.client.HTTPResponse:
        headers = dict(self._headers)
        if body is not None:
            headers["content-type"] = "application/json"
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, self._path + path, data, headers)
        return connection.getresponse()

    def _lost(self, error: Exception) -> str:
        return f"{self._url} does not answer: {error or type(error).__name__}"


def accepted(reply: Reply) -> Reply:
    """`reply`, if it is a 200.

    Raises:
        NotSupportedError: it is a refusal of what the engine does not do.
        CheckFailedError: it is anything else.
    """
    if reply.status == 200:
        return reply
    error = openai_error(reply.body)
    if error is None:
        raise CheckFailedError(f"HTTP {reply.status}: {reply.excerpt()}")
    raise_error(reply.status, error)


def raise_error(status: int, error: dict[str, Any]) -> NoReturn:
    """Raise the exception for an OpenAI error."""
    message = str(error.get("message"))
    if status == 400 and (error.get("code") == "unsupported_parameter" or _OF_THE_ENGINE.search(message)):
        raise NotSupportedError(message)
    raise CheckFailedError(f"HTTP {status}: {message}")


def openai_error(body: bytes | str) -> dict[str, Any] | None:
    """What an OpenAI error body says, also where Triton carries it as JSON text; None for anything else."""
    try:
        error = json.loads(body)["error"]
        if isinstance(error, str):
            error = json.loads(error)["error"]
    except (ValueError, LookupError, TypeError):
        return None
    return error if isinstance(error, dict) else None


def chunks(events: Iterator[str], *, end: str | None = None) -> list[dict[str, Any]]:
    """The events of a stream as JSON.

    Args:
        events: their data.
        end: the data of the last event, which is no JSON and must come.

    Raises:
        CheckFailedError: an event tells of an error, or `end` did not come last.
    """
    data = list(events)
    if end is not None and (not data or data.pop() != end):
        raise CheckFailedError(f"the stream ended without {end}")
    found = []
    for text in data:
        error = openai_error(text)
        if error is not None:
            raise CheckFailedError(f"an error within the stream: {error.get('message')}")
        chunk = json.loads(text)
        if chunk.get("error"):
            raise CheckFailedError(f"an error within the stream: {chunk['error']}")
        found.append(chunk)
    return found
