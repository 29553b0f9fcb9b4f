"""Answers of chat completions and completions: structs of whole ones, encoder of stream chunks.

Rules kept here (see docs/architecture.md): the role comes once, in a choice's first delta; the last delta is `{}` with
the finish_reason; the usage chunk stands alone with `choices: []`, and the others then say `usage: null`; fields that
are not set are left out.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

import msgspec

from openai_bls.api.common.encoding import encode
from openai_bls.core.usage import FinishReason, Usage


class FunctionText(msgspec.Struct, frozen=True):
    """The function of a tool call in an answer."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, tag_field="type", tag="function", frozen=True):
    """A call of a function in an answer."""

    id: str
    function: FunctionText


class CustomText(msgspec.Struct, frozen=True):
    """The custom tool of a tool call in an answer."""

    name: str
    input: str


class CustomToolCall(msgspec.Struct, tag_field="type", tag="custom", frozen=True):
    """A call of a custom tool in an answer."""

    id: str
    custom: CustomText


class AnswerMessage(msgspec.Struct, frozen=True):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    """Text of `reasoning_content` under its newer name: clients know one or the other."""
    tool_calls: list[ToolCall | CustomToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer of a chat completion."""

    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    finish_reason: FinishReason


class TextChoice(msgspec.Struct, frozen=True):
    """One answer of a completion."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: FinishReason


ChoiceT = TypeVar("ChoiceT")


class Answer(msgspec.Struct, Generic[ChoiceT], frozen=True):
    """A whole `chat.completion` or `text_completion`."""

    id: str
    object: str
    created: int
    """Unix seconds."""
    model: str
    choices: list[ChoiceT]
    usage: Usage
    system_fingerprint: str
    """Changes when the engine does."""
    kv_transfer_params: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    """What another engine needs to take the prompt's KV cache, where vLLM's connector tells it."""


# --- what the bytes of the chunks below hold, for the description of the API ---


class CallDelta(msgspec.Struct, frozen=True):
    """A piece of a tool call: `id`, `type` and the name come with the first. It has `function` or `custom`."""

    index: int
    function: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    custom: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET


class Delta(msgspec.Struct, frozen=True):
    """Piece of a message."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    """Role of the message, in a choice's first delta."""
    content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[CallDelta] | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """Piece of a choice of a chat completion."""

    index: int
    delta: Delta
    logprobs: dict[str, Any] | None
    finish_reason: FinishReason | None


class TextChunkChoice(msgspec.Struct, frozen=True):
    """Piece of a choice of a completion."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: FinishReason | None


class Chunk(msgspec.Struct, Generic[ChoiceT], frozen=True):
    """An event of a stream; after the last one comes `[DONE]`."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChoiceT]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    """Token counts, with `stream_options`; null in every chunk but the last."""


class Envelope(msgspec.Struct, frozen=True):
    """Fields shared by all chunks and answers of one request."""

    chat: bool
    id: str
    created: int
    """Unix seconds."""
    model: str
    fingerprint: str
    choices: int


class ChunkEncoder:
    """Writes the chunks of one stream, in Triton's form (bare JSON) or as server-sent events.

    A text chunk, one per token, is two joins around one encoded string.

    Args:
        envelope: envelope of the request.
        usage_null: every chunk but the usage chunk has `"usage": null` (stream_options.include_usage).
        sse: frame as `data: ...` and two line feeds.
    """

    def __init__(self, envelope: Envelope, *, usage_null: bool, sse: bool) -> None:
        chat = envelope.chat
        head = encode(
            {
                "id": envelope.id,
                "object": "chat.completion.chunk" if chat else "text_completion",
                "created": envelope.created,
                "model": envelope.model,
                "system_fingerprint": envelope.fingerprint,
            }
        )
        self._chat = chat
        self._head = (b"data: " if sse else b"") + head[:-1] + b',"choices":['
        self._end = b"}\n\n" if sse else b"}"
        self._tail = (b'],"usage":null' if usage_null else b"]") + self._end
        opening = b',"delta":{"content":' if chat else b',"text":'
        closing = b'},"logprobs":null,"finish_reason":null}' if chat else (b',"logprobs":null,"finish_reason":null}')
        self._text_heads = [self._head + b'{"index":%d' % i + opening for i in range(envelope.choices)]
        self._text_tail = closing + self._tail
        self._closing = closing

    def text(self, index: int, text: str, usage: Usage | None = None) -> bytes:
        """A piece of text of choice `index`."""
        if usage is None:
            return self._text_heads[index] + encode(text) + self._text_tail
        return self._text_heads[index] + encode(text) + self._closing + self._with_usage(usage)

    def text_with_logprobs(self, index: int, text: str, logprobs: dict[str, Any], usage: Usage | None = None) -> bytes:
        """A piece of text of choice `index` with the log-probabilities of its tokens."""
        body: dict[str, Any] = {"delta": {"content": text}} if self._chat else {"text": text}
        return self._choice({"index": index, **body, "logprobs": logprobs, "finish_reason": None}, usage)

    def role(self, index: int, usage: Usage | None = None) -> bytes:
        """The first delta of a chat choice."""
        return self.delta(index, {"role": "assistant", "content": ""}, usage=usage)

    def delta(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, usage: Usage | None = None
    ) -> bytes:
        """Any other delta of a chat choice."""
        return self._choice({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}, usage)

    def finish(
        self, index: int, reason: FinishReason, logprobs: dict[str, Any] | None = None, usage: Usage | None = None
    ) -> bytes:
        """The last chunk of a choice."""
        last: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        return self._choice({"index": index, **last, "logprobs": logprobs, "finish_reason": reason}, usage)

    def usage(self, usage: Usage) -> bytes:
        """The chunk of its own that carries the usage."""
        return self._head + self._with_usage(usage)

    def _choice(self, choice: dict[str, Any], usage: Usage | None) -> bytes:
        return self._head + encode(choice) + (self._tail if usage is None else self._with_usage(usage))

    def _with_usage(self, usage: Usage) -> bytes:
        return b'],"usage":' + encode(usage) + self._end
