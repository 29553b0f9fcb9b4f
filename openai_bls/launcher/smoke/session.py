"""What the checks share: where the server is, and its greedy answer to the one question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from openai_bls.launcher.smoke.client import HttpServer
from openai_bls.launcher.smoke.outcome import CheckFailedError, NotCheckedError

QUESTION = "What is the capital of France?"
MAX_TOKENS = 48
# Room for models that think before they write what a grammar asks for.
GRAMMAR_MAX_TOKENS = 1024


@dataclass(frozen=True)
class Target:
    """A running server."""

    openai_url: str
    """Of /v1, ending in /v1."""
    triton_url: str | None = None
    grpc_url: str | None = None
    """Host and port without a scheme."""
    metrics_url: str | None = None
    """Triton's page, with its path."""
    api_key: str = ""
    model: str | None = None
    """A served name; None takes the first one listed."""
    timeout: float = 120.0
    """Seconds that the server may be silent in one check."""


class Session:
    """A run over one server."""

    def __init__(self, target: Target) -> None:
        self.target = target
        key = {"authorization": f"Bearer {target.api_key}"} if target.api_key else {}
        self.v1 = HttpServer(target.openai_url, key, target.timeout)
        self.root = HttpServer(target.openai_url.rstrip("/").removesuffix("/v1"), key, target.timeout)
        self._model = target.model
        self._answer: str | None = None

    @property
    def triton(self) -> HttpServer:
        """Triton's HTTP port."""
        if self.target.triton_url is None:
            raise NotCheckedError("needs --triton-url")
        return HttpServer(self.target.triton_url, {}, self.target.timeout)

    @property
    def model(self) -> str:
        """The name that is asked for."""
        if self._model is None:
            cards = self.v1.get("/models").json()["data"]
            if not cards:
                raise CheckFailedError("no model is served")
            self._model = str(cards[0]["id"])
        return self._model

    def body(self, **fields: Any) -> dict[str, Any]:
        """A greedy chat completion of the question."""
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            **fields,
        }

    @property
    def answer(self) -> str:
        """The whole greedy answer to `body()`, thoughts included; asked for once."""
        if self._answer is None:
            answer = self.v1.post("/chat/completions", self.body())
            self._answer = message_text(answer["choices"][0]["message"])
        return self._answer


def message_text(message: dict[str, Any]) -> str:
    """All text of a message or a delta, thoughts first."""
    return (message.get("reasoning_content") or "") + (message.get("content") or "")


def streamed_text(chunks: list[dict[str, Any]]) -> str:
    """All text of the first choice of a chat stream, thoughts first."""
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == 0]
    return "".join(d.get("reasoning_content") or "" for d in deltas) + "".join(d.get("content") or "" for d in deltas)


def must_equal(found: object, expected: object, what: str) -> None:
    """Raise unless the two are the same."""
    if found != expected:
        raise CheckFailedError(f"{what}: {found!r}, expected {expected!r}")
