"""Tee of a request's events: to its stream, and to what collects the whole answer."""

from __future__ import annotations

from collections.abc import Callable

from openai_bls.core.errors import ApiError
from openai_bls.core.logprobs import TokenLogprob
from openai_bls.core.usage import FinishReason, Usage
from openai_bls.pipeline.generation.collector import Collector
from openai_bls.pipeline.generation.sequence_state import SequenceState
from openai_bls.pipeline.generation.writer import Writer


class Tee(Collector):
    """Writer that passes every event of a sequence on to two.

    Args:
        stream: writer that gets the end of the request too.
        collector: writer that does not; the API asks it for the whole answer.
    """

    def __init__(self, stream: Writer, collector: Writer) -> None:
        self._stream = stream
        self._collector = collector

    def count_by(self, count: Callable[[int], None]) -> None:
        """Have what the collector keeps counted."""
        if isinstance(self._collector, Collector):
            self._collector.count_by(count)

    def logprobs(self, sequence: SequenceState, tokens: list[TokenLogprob]) -> None:
        """Log-probabilities of tokens."""
        self._stream.logprobs(sequence, tokens)
        self._collector.logprobs(sequence, tokens)

    def text(self, sequence: SequenceState, text: str) -> None:
        """A piece of content."""
        self._stream.text(sequence, text)
        self._collector.text(sequence, text)

    def reasoning(self, sequence: SequenceState, text: str) -> None:
        """A piece of reasoning."""
        self._stream.reasoning(sequence, text)
        self._collector.reasoning(sequence, text)

    def tool_call(self, sequence: SequenceState, index: int, call_id: str, name: str) -> None:
        """A tool call begins."""
        self._stream.tool_call(sequence, index, call_id, name)
        self._collector.tool_call(sequence, index, call_id, name)

    def tool_arguments(self, sequence: SequenceState, index: int, fragment: str) -> None:
        """A fragment of a tool call's arguments."""
        self._stream.tool_arguments(sequence, index, fragment)
        self._collector.tool_arguments(sequence, index, fragment)

    def finished(self, sequence: SequenceState, reason: FinishReason) -> None:
        """A sequence has ended."""
        self._stream.finished(sequence, reason)
        self._collector.finished(sequence, reason)

    def done(self, usage: Usage) -> None:
        """All sequences have ended."""
        self._stream.done(usage)

    def failed(self, error: ApiError) -> None:
        """The request has failed."""
        self._stream.failed(error)
