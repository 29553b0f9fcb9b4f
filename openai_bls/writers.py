"""The two shapes of an answer: a stream of chunks, written as they come, and one whole answer at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from openai_bls.errors import ApiError
from openai_bls.generation import Sequence
from openai_bls.protocol.responses import (
    Answer,
    AnswerMessage,
    ChatChoice,
    ChunkEncoder,
    FinishReason,
    FunctionText,
    TextChoice,
    ToolCall,
    Usage,
)


class Sink(Protocol):
    """Where a stream's chunks go: a /v1 connection or a Triton response stream. Never raises, never blocks."""

    sse: bool
    """Whether chunks are server-sent events instead of bare JSON."""
    opens_at_once: bool
    """Whether the role chunks are written before the first token."""

    def begin(self, encoder: ChunkEncoder) -> None:
        """Before everything else: what writes this stream's text."""
        ...

    def text(self, index: int, text: str, usage: Usage | None) -> None:
        """A piece of text of choice `index`; one that has not gone out yet may be joined to the next."""
        ...

    def write(self, chunk: bytes) -> None:
        """One encoded chunk."""
        ...

    def end(self) -> None:
        """The stream is complete."""
        ...

    def fail(self, error: ApiError) -> None:
        """The stream ends with an error."""
        ...


class StreamWriter:
    """Writes chunks to a sink as the text comes.

    Args:
        usage: the counts up to now, for `continuous_usage_stats`; None without it.
    """

    def __init__(
        self,
        encoder: ChunkEncoder,
        sink: Sink,
        *,
        chat: bool,
        include_usage: bool,
        choices: int,
    ) -> None:
        self._encoder = encoder
        self._sink = sink
        sink.begin(encoder)
        self._include_usage = include_usage
        # Chat choices whose first delta, the one with the role, is still to come.
        self._roleless = set(range(choices)) if chat else set()
        self.usage: Callable[[], Usage] | None = None

    def open(self) -> None:
        """Write the role of every choice now instead of with its first delta."""
        for index in sorted(self._roleless):
            self._sink.write(self._encoder.role(index, self._usage()))
        self._roleless.clear()

    def text(self, sequence: Sequence, text: str) -> None:
        """A piece of content."""
        if self._roleless:
            self._role(sequence.index)
        self._sink.text(sequence.index, text, None if self.usage is None else self.usage())

    def tool_call(self, sequence: Sequence, index: int, call_id: str, name: str) -> None:
        """The name and id of a tool call, which come once."""
        function = {"name": name, "arguments": ""}
        self._tool_delta(sequence, {"index": index, "id": call_id, "type": "function", "function": function})

    def tool_arguments(self, sequence: Sequence, index: int, fragment: str) -> None:
        """A fragment of a tool call's arguments."""
        self._tool_delta(sequence, {"index": index, "function": {"arguments": fragment}})

    def finished(self, sequence: Sequence, reason: FinishReason) -> None:
        """The choice's last chunk."""
        self._role(sequence.index)
        self._sink.write(self._encoder.finish(sequence.index, reason, self._usage()))

    def done(self, usage: Usage) -> None:
        """The usage chunk, if it was asked for, and the end."""
        if self._include_usage:
            self._sink.write(self._encoder.usage(usage))
        self._sink.end()

    def failed(self, error: ApiError) -> None:
        """An error ends the stream."""
        self._sink.fail(error)

    def _usage(self) -> Usage | None:
        return None if self.usage is None else self.usage()

    def _role(self, index: int) -> None:
        if index in self._roleless:
            self._roleless.discard(index)
            self._sink.write(self._encoder.role(index, self._usage()))

    def _tool_delta(self, sequence: Sequence, call: dict[str, object]) -> None:
        self._role(sequence.index)
        self._sink.write(self._encoder.delta(sequence.index, {"tool_calls": [call]}, self._usage()))


class _Parts:
    """What one choice has collected."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: list[tuple[str, str, list[str]]] = []
        self.reason: FinishReason = "stop"


class AnswerWriter:
    """Collects everything and resolves `answer` at the end."""

    def __init__(
        self,
        *,
        chat: bool,
        response_id: str,
        created: int,
        model: str,
        fingerprint: str,
        choices: int,
    ) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._chat = chat
        self._response_id = response_id
        self._created = created
        self._model = model
        self._fingerprint = fingerprint
        self._parts = [_Parts() for _ in range(choices)]

    def text(self, sequence: Sequence, text: str) -> None:
        """A piece of content."""
        self._parts[sequence.index].texts.append(text)

    def tool_call(self, sequence: Sequence, index: int, call_id: str, name: str) -> None:
        """A tool call begins."""
        assert index == len(self._parts[sequence.index].calls)
        self._parts[sequence.index].calls.append((call_id, name, []))

    def tool_arguments(self, sequence: Sequence, index: int, fragment: str) -> None:
        """A fragment of a tool call's arguments."""
        self._parts[sequence.index].calls[index][2].append(fragment)

    def finished(self, sequence: Sequence, reason: FinishReason) -> None:
        """The choice has ended."""
        self._parts[sequence.index].reason = reason

    def done(self, usage: Usage) -> None:
        """Resolve the answer."""
        if not self.answer.done():
            self.answer.set_result(
                Answer(
                    id=self._response_id,
                    object="chat.completion" if self._chat else "text_completion",
                    created=self._created,
                    model=self._model,
                    choices=self._choices(),
                    usage=usage,
                    system_fingerprint=self._fingerprint,
                )
            )

    def failed(self, error: ApiError) -> None:
        """Resolve with the error."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def _choices(self) -> list[ChatChoice] | list[TextChoice]:
        if not self._chat:
            return [TextChoice(i, "".join(p.texts), None, p.reason) for i, p in enumerate(self._parts)]
        return [ChatChoice(i, _message(p), None, p.reason) for i, p in enumerate(self._parts)]


def _message(parts: _Parts) -> AnswerMessage:
    content = "".join(parts.texts)
    if not parts.calls:
        return AnswerMessage("assistant", content)
    calls = [
        ToolCall(call_id, "function", FunctionText(name, "".join(fragments)))
        for call_id, name, fragments in parts.calls
    ]
    return AnswerMessage("assistant", content or None, tool_calls=calls or msgspec.UNSET)
