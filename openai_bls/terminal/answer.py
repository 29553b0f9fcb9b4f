"""Answer of a chat: asked for with the official SDK, read chunk by chunk, and timed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import httpx
import openai

from openai_bls.launcher.errors import LaunchError
from openai_bls.terminal.connection import Connection, refusal, unreachable

if TYPE_CHECKING:
    from openai_bls.terminal.conversation import Message


class Piece(NamedTuple):
    """Text of one chunk."""

    kind: Literal["text", "reasoning"]
    text: str


@dataclass
class Answer:
    """Answer as far as it has arrived."""

    text: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    tokens: int | None = None
    """Generated, as the server counts them."""
    first_s: float | None = None
    """Seconds to the first token."""
    total_s: float = 0.0

    def message(self) -> Message:
        """As a request repeats it."""
        message: Message = {"role": "assistant", "content": self.text or (None if self.tool_calls else "")}
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        return message

    def summary(self) -> str:
        """Tokens, speed and time to first token."""
        if self.first_s is None:
            return f"no token in {self.total_s:.2f} s"
        parts = [] if self.tokens is None else [f"{self.tokens} tokens"]
        decode_s = self.total_s - self.first_s
        if self.tokens is not None and self.tokens > 1 and decode_s > 0:
            parts.append(f"{(self.tokens - 1) / decode_s:.1f} tokens/s")
        parts.append(f"first token after {self.first_s:.2f} s")
        if self.finish_reason == "length":
            parts.append("cut off at the limit of tokens")
        return ", ".join(parts)


class Asker:
    """Sends chat completions to one server."""

    def __init__(self, server: Connection) -> None:
        self._server = server
        # A key must not be empty; servers without keys take any.
        self._client = openai.OpenAI(
            base_url=server.url,
            api_key=server.api_key or "none",
            timeout=server.timeout,
            max_retries=0,
            http_client=openai.DefaultHttpxClient(verify=server.tls),
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def stream(self, answer: Answer, **body: Any) -> Iterator[Piece]:
        """Ask, put what comes into `answer`, and hand its text on.

        Raises:
            LaunchError: there was no answer, or it ended with an error.
        """
        start = time.monotonic()
        try:
            with self._client.chat.completions.create(
                stream=True, stream_options={"include_usage": True}, **body
            ) as chunks:
                for piece in _pieces(answer, chunks):
                    if answer.first_s is None:
                        answer.first_s = time.monotonic() - start
                    if piece.text:
                        yield piece
            if answer.finish_reason is None:
                raise LaunchError(f"the answer of {self._server.url} broke off")
        except openai.APIStatusError as error:
            raise LaunchError(refusal(self._server, error.status_code, error.body)) from None
        except openai.APITimeoutError as error:
            raise LaunchError(unreachable(self._server.url, httpx.ReadTimeout(str(error)))) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__
            raise LaunchError(unreachable(self._server.url, cause if isinstance(cause, Exception) else error)) from None
        except openai.APIError as error:
            raise LaunchError(f"the server ended the answer with an error: {error.message}") from None
        except httpx.HTTPError as error:
            raise LaunchError(unreachable(self._server.url, error)) from None
        except ValueError as error:
            raise LaunchError(f"{self._server.url} answers what is no chat completion: {error}") from None
        finally:
            answer.total_s = time.monotonic() - start


def _pieces(answer: Answer, chunks: Iterable[Any]) -> Iterator[Piece]:
    for chunk in chunks:
        if chunk.usage is not None:
            answer.tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            yield from _take(answer, choice)


def _take(answer: Answer, choice: Any) -> Iterator[Piece]:
    answer.finish_reason = choice.finish_reason or answer.finish_reason
    delta = choice.delta
    # Fields that OpenAI's own models lack: DeepSeek's name, and vLLM's.
    reasoning = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None)
    if reasoning:
        answer.reasoning += reasoning
        yield Piece("reasoning", reasoning)
    if delta.content:
        answer.text += delta.content
        yield Piece("text", delta.content)
    for call in delta.tool_calls or ():
        while len(answer.tool_calls) <= call.index:
            answer.tool_calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        held = answer.tool_calls[call.index]
        held["id"] = call.id or held["id"]
        if call.function is not None:
            held["function"]["name"] += call.function.name or ""
            held["function"]["arguments"] += call.function.arguments or ""
        yield Piece("text", "")
