"""From what a sequence brings to the events of a message; a whole answer is what the same events add up to."""

from __future__ import annotations

from typing import Any

import msgspec

from openai_bls.api.common.answer_future import AnswerFuture
from openai_bls.api.common.encoding import new_id
from openai_bls.api.common.event_sink import EventSink
from openai_bls.api.messages.errors import error_event
from openai_bls.api.messages.events import (
    BlockDelta,
    BlockStart,
    BlockStop,
    ContentBlock,
    Delta,
    Event,
    InputJsonDelta,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    Ping,
    SignatureDelta,
    Stop,
    StopReason,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolUse,
    Usage,
    encode_event,
)
from openai_bls.api.messages.turns import tool_use_id
from openai_bls.core.errors import ApiError
from openai_bls.core.logprobs import TokenLogprob
from openai_bls.core.usage import FinishReason
from openai_bls.core.usage import Usage as ChatUsage
from openai_bls.pipeline.sequence import Sequence


class MessageEvents:
    """Turns what the one sequence of a request brings into events: content blocks, one after the other.

    A block goes on until something of another kind comes. The first event waits for the first output, so that an error
    before it is no part of a message.

    Args:
        model: the name under which the client asked for the model.
        omit_thinking: thinking blocks are told, what is in them is not.
    """

    def __init__(self, model: str, *, omit_thinking: bool) -> None:
        self._model = model
        self._omit_thinking = omit_thinking
        self._started = False
        # Of the block that has begun last.
        self._index = -1
        self._open: ContentBlock | None = None
        self._tool_uses = 0
        self._stop: Stop | None = None

    def emit(self, event: Event) -> None:
        """Pass an event on."""
        raise NotImplementedError

    def logprobs(self, sequence: Sequence, tokens: list[TokenLogprob]) -> None:
        """The API has none, so none are asked for."""

    def text(self, sequence: Sequence, text: str) -> None:
        """A piece of content."""
        if not isinstance(self._open, Text):
            self._begin(sequence, Text(""))
        self._delta(TextDelta(text))

    def reasoning(self, sequence: Sequence, text: str) -> None:
        """A piece of what the model thinks."""
        if not isinstance(self._open, Thinking):
            self._begin(sequence, Thinking(""))
        if not self._omit_thinking:
            self._delta(ThinkingDelta(text))

    def tool_call(self, sequence: Sequence, index: int, call_id: str, name: str) -> None:
        """A tool call begins."""
        self._tool_uses += 1
        self._begin(sequence, ToolUse(tool_use_id(call_id), name, {}))

    def tool_arguments(self, sequence: Sequence, index: int, fragment: str) -> None:
        """A fragment of the input of the call that has begun last."""
        self._delta(InputJsonDelta(fragment))

    def finished(self, sequence: Sequence, reason: FinishReason) -> None:
        """The content is complete."""
        self._start(sequence)
        self._close()
        self._stop = Stop(self._stop_reason(sequence, reason), sequence.matched_stop)

    def end(self, usage: ChatUsage) -> None:
        """Nothing more comes: the last events."""
        assert self._stop is not None
        self.emit(MessageDelta(self._stop, Usage.of_chat(usage)))
        self.emit(MessageStop())

    def _stop_reason(self, sequence: Sequence, reason: FinishReason) -> StopReason:
        if sequence.matched_stop is not None:
            return "stop_sequence"
        if reason == "length":
            return "max_tokens"
        return "tool_use" if self._tool_uses else "end_turn"

    def _start(self, sequence: Sequence) -> None:
        if self._started:
            return
        self._started = True
        usage = Usage.of(len(sequence.request.prompt_token_ids), sequence.cached_tokens, 0, 0)
        self.emit(MessageStart(Message(new_id("msg_", 12), "assistant", self._model, [], None, None, usage)))
        self.emit(Ping())

    def _begin(self, sequence: Sequence, block: ContentBlock) -> None:
        self._start(sequence)
        self._close()
        self._index += 1
        self._open = block
        self.emit(BlockStart(self._index, block))

    def _delta(self, delta: Delta) -> None:
        self.emit(BlockDelta(self._index, delta))

    def _close(self) -> None:
        if self._open is None:
            return
        if isinstance(self._open, Thinking):
            self._delta(SignatureDelta(""))
        self._open = None
        self.emit(BlockStop(self._index))


class StreamedMessage(MessageEvents):
    """Writes the events to a sink as they come."""

    def __init__(self, sink: EventSink, model: str, *, omit_thinking: bool) -> None:
        super().__init__(model, omit_thinking=omit_thinking)
        self._sink = sink

    def emit(self, event: Event) -> None:
        """Write it."""
        self._sink.write(encode_event(event))

    def done(self, usage: ChatUsage) -> None:
        """The last events, and the end."""
        self.end(usage)
        self._sink.end()

    def failed(self, error: ApiError) -> None:
        """An error ends the stream."""
        self._sink.fail(error, error_event(error))


class WholeMessage(MessageEvents, AnswerFuture[Message]):
    """Adds the events up and resolves `answer` at the end."""

    def __init__(self, model: str, *, omit_thinking: bool) -> None:
        MessageEvents.__init__(self, model, omit_thinking=omit_thinking)
        AnswerFuture.__init__(self)
        self._sum = MessageSum()

    def emit(self, event: Event) -> None:
        """Add it."""
        self._sum.add(event)

    def make_answer(self, usage: ChatUsage) -> Message:
        """What they add up to."""
        self.end(usage)
        return self._sum.message()


class MessageSum:
    """What the events of a stream add up to."""

    def __init__(self) -> None:
        self._message: Message | None = None
        self._pieces: list[str] = []

    def add(self, event: Event) -> None:
        """Take the next event."""
        if isinstance(event, MessageStart):
            self._message = event.message
        elif isinstance(event, BlockStart):
            self.message().content.append(event.content_block)
            self._pieces = []
        elif isinstance(event, BlockDelta):
            self._pieces.append(_piece(event.delta))
        elif isinstance(event, BlockStop):
            _fill(self.message().content[event.index], "".join(self._pieces))
        elif isinstance(event, MessageDelta):
            message = self.message()
            message.stop_reason = event.delta.stop_reason
            message.stop_sequence = event.delta.stop_sequence
            message.usage = event.usage

    def message(self) -> Message:
        """The message so far."""
        assert self._message is not None
        return self._message


def _piece(delta: Delta) -> str:
    if isinstance(delta, TextDelta):
        return delta.text
    if isinstance(delta, ThinkingDelta):
        return delta.thinking
    if isinstance(delta, InputJsonDelta):
        return delta.partial_json
    return delta.signature


def _fill(block: ContentBlock, text: str) -> None:
    if isinstance(block, Text):
        block.text = text
    elif isinstance(block, Thinking):
        block.thinking = text
    else:
        block.input = tool_input(text)


def tool_input(text: str) -> dict[str, Any] | msgspec.Raw:
    """A tool call's input: the model's own text if that is a JSON object.

    If it is not, having been cut off at max_tokens, say, it is given as a string in an object: nothing is repaired, and
    no tool is called by mistake with less than the model meant.
    """
    try:
        msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {"INVALID_JSON": text}
    return msgspec.Raw(text.encode())
