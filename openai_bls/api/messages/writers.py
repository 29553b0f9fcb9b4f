"""Writers of the Messages API: a stream of events, or the message that they add up to.

The events are of Anthropic's API reference: `message_start`, `ping`, for each content block `content_block_start`,
`content_block_delta` and `content_block_stop`, then `message_delta` and `message_stop`. Clients count events, not
comments: a stream begins before the first token, and its silence is broken by further pings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from openai_bls.api.common.encoding import encode, new_id
from openai_bls.api.common.events.answer_future import AnswerFuture
from openai_bls.api.common.events.event_sink import EventSink
from openai_bls.api.common.events.tee import Tee
from openai_bls.api.messages.errors import error_event
from openai_bls.api.messages.turns import tool_input, tool_use_id
from openai_bls.core.errors import ApiError
from openai_bls.core.logprobs import TokenLogprob
from openai_bls.core.usage import FinishReason, Usage
from openai_bls.pipeline.generation.collector import GrowingText
from openai_bls.pipeline.generation.sequence_state import SequenceState
from openai_bls.pipeline.generation.writer import Writer

Message = dict[str, Any]
Block = dict[str, Any]

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
"""The event that breaks silence."""
MAX_SILENCE_S = 10.0
"""Seconds between pings, as at Anthropic; Claude Code gives a stream up after 300 s without an event."""

# Type of a content block → type of its deltas, and their field.
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


class _MessageWriter:
    """Turns the events of a request's one sequence into content blocks, one after the other.

    A block goes on until something of another kind comes. The message starts with the first output, unless it has been
    started before.

    Args:
        model: the name under which the client asked for the model.
        omit_thinking: write thinking blocks without their text.
        max_tokens: the request's `max_tokens`.
        applied_edits: edits of the conversation that cleared something; None if the request asked for none.
    """

    def __init__(
        self,
        model: str,
        *,
        omit_thinking: bool,
        max_tokens: int,
        applied_edits: list[dict[str, Any]] | None = None,
    ) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self._edits = {} if applied_edits is None else {"context_management": {"applied_edits": applied_edits}}
        self._omit_thinking = omit_thinking
        self._id = new_id("msg_", 12)
        self._message: Message | None = None
        # Type of the block that is open, and its index or that of the last one.
        self._open: str | None = None
        self._index = -1
        self._tool_uses = 0

    def _start(self, message: Message) -> None:
        """The message starts; its content is empty."""
        raise NotImplementedError

    def _begin(self, block: Block) -> None:
        """A block begins, empty."""
        raise NotImplementedError

    def _piece(self, text: str) -> None:
        """The next piece of the open block."""
        raise NotImplementedError

    def _close(self) -> None:
        """The open block is complete."""
        raise NotImplementedError

    def logprobs(self, sequence: SequenceState, tokens: list[TokenLogprob]) -> None:
        """The API has none, so none are asked for."""

    def text(self, sequence: SequenceState, text: str) -> None:
        """A piece of content."""
        if self._open != "text":
            self._enter(sequence, {"type": "text", "text": ""})
        self._piece(text)

    def reasoning(self, sequence: SequenceState, text: str) -> None:
        """A piece of the reasoning."""
        if self._open != "thinking":
            # Nothing needs to be proved when the block is fed back, so the signature is always empty.
            self._enter(sequence, {"type": "thinking", "thinking": "", "signature": ""})
        if not self._omit_thinking:
            self._piece(text)

    def tool_call(self, sequence: SequenceState, index: int, call_id: str, name: str) -> None:
        """A tool call begins."""
        self._tool_uses += 1
        self._enter(sequence, {"type": "tool_use", "id": tool_use_id(call_id), "name": name, "input": {}})

    def tool_arguments(self, sequence: SequenceState, index: int, fragment: str) -> None:
        """A fragment of the input of the open call."""
        self._piece(fragment)

    def finished(self, sequence: SequenceState, reason: FinishReason) -> None:
        """The content is complete."""
        message = self._started(sequence)
        self._leave()
        message["stop_reason"] = self._stop_reason(sequence, reason)
        message["stop_sequence"] = sequence.matched_stop

    def _stop_reason(
        self, sequence: SequenceState, reason: FinishReason
    ) -> Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]:
        if sequence.matched_stop is not None:
            return "stop_sequence"
        if reason == "length":
            # Where the context has less room than the client allows tokens, that is the limit.
            room = sequence.request.max_tokens
            return "max_tokens" if self._max_tokens <= room else "model_context_window_exceeded"
        return "tool_use" if self._tool_uses else "end_turn"

    def _started(self, sequence: SequenceState) -> Message:
        if self._message is None:
            return self._start_with(Usage.of(len(sequence.request.prompt_token_ids), 0, cached=sequence.cached_tokens))
        return self._message

    def _start_with(self, usage: Usage) -> Message:
        message = self._message = {
            "type": "message",
            "id": self._id,
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage),
        }
        self._start(message)
        return message

    def _enter(self, sequence: SequenceState, block: Block) -> None:
        self._started(sequence)
        self._leave()
        self._index += 1
        self._open = block["type"]
        self._begin(block)

    def _leave(self) -> None:
        if self._open is not None:
            self._close()
            self._open = None


class StreamedMessage(_MessageWriter):
    """Writes events to a sink as they come.

    Args:
        sink: receiver of the events.
        model: see `_MessageWriter`.
        options: further arguments of `_MessageWriter`.
    """

    def __init__(self, sink: EventSink, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        self._sink = sink
        self._options = options

    def recorded(self) -> tuple[Writer, Callable[[Usage], Message]]:
        """This writer and one of the whole message, which has the same id."""
        whole = WholeMessage(self._model, **self._options)
        whole._id = self._id
        return Tee(self, whole), whole.make_answer

    def open(self, usage: Usage) -> None:
        """The first events, before there is any output; how much of the prompt is cached is not known yet.

        Args:
            usage: tokens of the prompt.
        """
        self._start_with(usage)

    def done(self, usage: Usage) -> None:
        """The last events, and the end."""
        assert self._message is not None
        stop = {name: self._message[name] for name in ("stop_reason", "stop_sequence")}
        self._event("message_delta", delta=stop, usage=_usage(usage), **self._edits)
        self._event("message_stop")
        self._sink.end()

    def failed(self, error: ApiError) -> None:
        """An error ends the stream."""
        self._sink.fail(error, error_event(error))

    def _start(self, message: Message) -> None:
        self._event("message_start", message=message)
        self._sink.write(PING)

    def _begin(self, block: Block) -> None:
        self._event("content_block_start", index=self._index, content_block=block)
        kind, field = _DELTAS[block["type"]]
        # There is one of these events per token, so all but the text is encoded once.
        head = encode({"type": "content_block_delta", "index": self._index, "delta": {"type": kind, field: ""}})
        self._head = b"event: content_block_delta\ndata: " + head.removesuffix(b'""}}')

    def _piece(self, text: str) -> None:
        self._sink.write(self._head + encode(text) + b"}}\n\n")

    def _close(self) -> None:
        if self._open == "thinking":
            self._event("content_block_delta", index=self._index, delta={"type": "signature_delta", "signature": ""})
        self._event("content_block_stop", index=self._index)

    def _event(self, kind: str, **fields: Any) -> None:
        self._sink.write(b"event: " + kind.encode() + b"\ndata: " + encode({"type": kind, **fields}) + b"\n\n")


class WholeMessage(_MessageWriter, AnswerFuture[Message]):
    """Collects the blocks and resolves `answer` at the end."""

    def __init__(self, model: str, **options: Any) -> None:
        _MessageWriter.__init__(self, model, **options)
        AnswerFuture.__init__(self)
        self._text = GrowingText()

    def make_answer(self, usage: Usage) -> Message:
        """The message."""
        assert self._message is not None
        return {**self._message, "usage": _usage(usage), **self._edits}

    def _start(self, message: Message) -> None:
        self._content: list[Block] = message["content"]

    def _begin(self, block: Block) -> None:
        self._content.append(block)
        self._text = GrowingText()

    def _piece(self, text: str) -> None:
        self._grow(self._text, text)

    def _close(self) -> None:
        self._hold(self._text.join())
        block, text = self._content[-1], self._text.whole
        if self._open == "tool_use":
            block["input"] = tool_input(text)
        else:
            block[block["type"]] = text


def _usage(usage: Usage) -> dict[str, Any]:
    """The counts in this API's form. The three kinds of input tokens exclude each other; their sum is the prompt's."""
    cached = usage.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens - cached,
        # What is written to the cache costs nothing extra here.
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.completion_tokens_details.reasoning_tokens},
    }
