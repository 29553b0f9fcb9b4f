"""Server under test: its clients, and its greedy answer to the one question."""

from __future__ import annotations

import functools
import json
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import openai
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion_chunk import ChoiceDelta

GENERATES = "generate"
"""Task of a model that answers chats and completes texts."""
QUESTION = "What is the capital of France?"
MAX_TOKENS = 48
# Room for models that think before they write what a grammar asks for.
GRAMMAR_MAX_TOKENS = 1024


class CheckFailedError(Exception):
    """The server did not do what it should; the message is one line."""


class NotCheckedError(Exception):
    """The check could not be made, through no fault of the server; the message says what it needs."""


@dataclass(frozen=True)
class Target:
    """A running server."""

    openai_url: str
    """URL of the API, ending in /v1."""
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
    tls: ssl.SSLContext | None = None
    """Verification of https URLs, with the client's own certificate; None is the usual one."""


class Card(NamedTuple):
    """A served model."""

    name: str
    task: str
    is_engine: bool
    """It is an engine, or an adapter of one, and no other Triton model."""


class Session:
    """A run over one server."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.v1 = self._client(target.openai_url, target.api_key)
        self.root = self._client(target.openai_url.removesuffix("/v1"), target.api_key)

    def _client(self, url: str, api_key: str = "") -> openai.OpenAI:
        # The server is named by its address: no proxy of the environment stands between.
        http_client = openai.DefaultHttpxClient(trust_env=False, timeout=self.target.timeout, verify=self.tls)
        return openai.OpenAI(base_url=url, api_key=api_key or "none", max_retries=0, http_client=http_client)

    @functools.cached_property
    def tls(self) -> ssl.SSLContext:
        """Verification of https URLs, and the client's own certificate."""
        return self.target.tls or ssl.create_default_context()

    @functools.cached_property
    def triton(self) -> openai.OpenAI:
        """Client of Triton's HTTP port, whose endpoints take and give JSON and event streams as well."""
        return self._client(self.given("triton_url"))

    def with_key(self, fields: dict[str, Any]) -> dict[str, Any]:
        """A body for Triton's endpoints, with the API key if there is one."""
        return {**fields, "api_key": self.target.api_key} if self.target.api_key else fields

    def given(self, name: str) -> str:
        """The address that the target has by this name."""
        url: str | None = getattr(self.target, name)
        if url is None:
            raise NotCheckedError(f"needs --{name.replace('_', '-')}")
        return url

    @functools.cached_property
    def cards(self) -> list[Card]:
        """The served models, the default first."""
        cards = [_card(model) for model in self.v1.models.list().data]
        must(cards, "no model is served")
        return cards

    def engine(self, *tasks: str) -> str:
        """The served name that is asked where the model must have one of these tasks, or any task of an engine.

        Raises:
            NotCheckedError: no such model is served, or the target's does something else.
        """
        named = self.target.model
        if named is not None:
            task = self._task_of(named)
            fits = not tasks or task in tasks
        else:
            named = next((card.name for card in self.cards if (card.task in tasks if tasks else card.is_engine)), None)
            fits = named is not None
        if named is None or not fits:
            raise NotCheckedError(f"needs a model with the task {' or '.join(tasks) or 'of an engine'}")
        return named

    def _task_of(self, name: str) -> str:
        """Task of a named model; one that the server does not list is asked, and refused, as if it generated."""
        try:
            return next((card.task for card in self.cards if card.name == name), GENERATES)
        except openai.APIError:
            return GENERATES

    @property
    def model(self) -> str:
        """The served name of a model that generates."""
        return self.engine(GENERATES)

    def require_default_to_generate(self) -> None:
        """Pass over a check of what has the default engine behind it, where that generates nothing."""
        if self.target.model is None and self.cards[0].task != GENERATES:
            raise NotCheckedError(f"needs a default engine with the task {GENERATES}")

    def task_model(self, tasks: Sequence[str]) -> str:
        """The first model with one of these tasks."""
        name = next((card.name for card in self.cards if card.task in tasks), None)
        if name is None:
            raise NotCheckedError(f"needs a model with openai_task {' or '.join(tasks)}")
        return name

    def body(self, model: str | None = None, **fields: Any) -> dict[str, Any]:
        """A greedy chat completion of the question, by the model that generates unless another is named."""
        messages = [{"role": "user", "content": QUESTION}]
        found = self.model if model is None else model
        return {"model": found, "messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0, **fields}

    @functools.cached_property
    def answer(self) -> str:
        """The greedy answer to `body()`, thoughts included; asked for once."""
        answer: ChatCompletion = self.v1.chat.completions.create(**self.body())
        return message_text(answer.choices[0].message)


def _card(model: Model) -> Card:
    fields = model.model_extra or {}
    return Card(model.id, fields.get("task") or GENERATES, fields.get("max_model_len") is not None)


def get(client: openai.OpenAI, path: str) -> str:
    """The text that answers a GET."""
    return client.get(path, cast_to=str)


def post(client: openai.OpenAI, path: str, body: dict[str, Any]) -> Any:
    """The JSON that answers a POST."""
    return client.post(path, body=body, cast_to=object)


def events(client: openai.OpenAI, path: str, body: dict[str, Any], *, end: str | None = None) -> list[dict[str, Any]]:
    """The server-sent events that answer a POST, as JSON; `end` is data that must end the stream and is no JSON."""
    answer = client.post(path, body=body, cast_to=openai.HttpxBinaryResponseContent)
    must_equal(answer.response.headers["content-type"].partition(";")[0], "text/event-stream", "the content type")
    data = [line[5:].strip() for line in answer.text.splitlines() if line.startswith("data:")]
    must(end is None or (data and data.pop() == end), f"the stream ended without {end}")
    found: list[dict[str, Any]] = [json.loads(text) for text in data]
    for event in found:
        must(not event.get("error"), f"an error within the stream: {event.get('error')}")
    return found


def message_text(message: ChatCompletionMessage | ChoiceDelta) -> str:
    """All text of a message or a delta, thoughts first."""
    return (getattr(message, "reasoning_content", None) or "") + (message.content or "")


def streamed_text(chunks: Iterable[ChatCompletionChunk]) -> str:
    """All text of the first choice of a chat stream; thoughts come first."""
    return "".join(message_text(c.delta) for chunk in chunks for c in chunk.choices if c.index == 0)


def must_equal(found: object, expected: object, what: str) -> None:
    """Raise unless the two are the same."""
    must(found == expected, f"{what}: {found!r}, expected {expected!r}")


def must(condition: object, otherwise: str) -> None:
    """Raise with the message `otherwise` unless `condition` holds."""
    if not condition:
        raise CheckFailedError(otherwise)


def shorten(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."
