"""Receivers of a request's events, and the rules by which a sequence's events reach them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from openai_bls.core.errors import ApiError
from openai_bls.core.logprobs import TokenLogprob
from openai_bls.core.usage import FinishReason, Usage
from openai_bls.output.events import (
    AnswerEnd,
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from openai_bls.output.tool_parsers.custom_input import InputDecoder
from openai_bls.pipeline.generation.sequence_state import SequenceState


class Writer(Protocol):
    """Receiver of a request's events; each API has one for streams and one for whole answers."""

    def logprobs(self, sequence: SequenceState, tokens: list[TokenLogprob]) -> None:
        """Log-probabilities of the tokens whose text begins in the event that comes next."""

    def text(self, sequence: SequenceState, text: str) -> None:
        """A piece of content, never empty."""

    def reasoning(self, sequence: SequenceState, text: str) -> None:
        """A piece of reasoning, never empty."""

    def tool_call(self, sequence: SequenceState, index: int, call_id: str, name: str) -> None:
        """A tool call begins; its arguments follow."""

    def tool_arguments(self, sequence: SequenceState, index: int, fragment: str) -> None:
        """A fragment of a tool call's arguments; of a custom tool's input."""

    def finished(self, sequence: SequenceState, reason: FinishReason) -> None:
        """This sequence has ended."""

    def done(self, usage: Usage) -> None:
        """All sequences have ended."""

    def failed(self, error: ApiError) -> None:
        """The request has failed; nothing more comes."""


class SequenceOwner(Protocol):
    """The request of a sequence; `generation.Generation` is one."""

    first_token_at: float | None
    """`time.monotonic()` of the first new token."""
    engine_queue_s: float | None
    """Seconds that its first sequence waited in the engine for a place in the batch."""

    @property
    def ended(self) -> bool:
        """True once nothing more may be written."""

    def fail(self, error: ApiError) -> None:
        """End the whole request with `error`."""

    def cancel_sequence(self, sequence: SequenceState) -> None:
        """Stop the engine's work on a sequence that has ended by itself."""

    def sequence_began(self) -> None:
        """The engine has read the prompt of a sequence."""

    def sequence_ended(self) -> None:
        """A sequence has written its finish_reason."""


class EventWriter:
    """Passes a sequence's events on to the request's writer.

    Args:
        writer: the request's writer.
        include_reasoning: whether reasoning is passed on.
        parallel_tool_calls: whether more than one tool call is allowed.
        forced: whether the answer is tool calls alone: other text, of a call that is cut for example, is dropped.
        custom_tools: names of the custom tools, of whose calls the writer gets the input instead of the arguments.
    """

    __slots__ = ("_custom_tools", "_forced", "_input", "_writer", "calls", "include_reasoning", "one_call")

    def __init__(
        self,
        writer: Writer,
        *,
        include_reasoning: bool,
        parallel_tool_calls: bool,
        forced: bool,
        custom_tools: Collection[str],
    ) -> None:
        self._writer = writer
        self.include_reasoning = include_reasoning
        self.one_call = not parallel_tool_calls
        self._forced = forced
        self._custom_tools = custom_tools
        self._input: tuple[InputDecoder, int] | None = None
        """Decoder of the open call of a custom tool, with the call's index."""
        self.calls = 0
        """Number of tool calls so far."""

    def write(self, sequence: SequenceState, events: list[Event]) -> bool:
        """Pass events on; True if the sequence is to stop here."""
        for event in events:
            if self._input is not None:
                if isinstance(event, ToolCallArguments):
                    decoder, index = self._input
                    self._write_input(sequence, index, decoder.push(event.fragment))
                    continue
                self.end_input(sequence)
            if isinstance(event, ContentDelta):
                if not self._forced:
                    self._writer.text(sequence, event.text)
            elif isinstance(event, ReasoningDelta):
                if self.include_reasoning:
                    self._writer.reasoning(sequence, event.text)
            elif isinstance(event, ToolCallStart):
                if self.calls == 1 and self.one_call:
                    return True
                self.calls += 1
                self._writer.tool_call(sequence, event.index, event.id, event.name)
                if event.name in self._custom_tools:
                    self._input = InputDecoder(), event.index
            elif isinstance(event, ToolCallArguments):
                self._writer.tool_arguments(sequence, event.index, event.fragment)
            elif isinstance(event, AnswerEnd):
                return True
        return False

    def end_input(self, sequence: SequenceState) -> None:
        """Write what is left of the input of a custom tool's call."""
        if self._input is not None:
            decoder, index = self._input
            self._write_input(sequence, index, decoder.finish())
            self._input = None

    def _write_input(self, sequence: SequenceState, index: int, text: str) -> None:
        if text:
            self._writer.tool_arguments(sequence, index, text)
