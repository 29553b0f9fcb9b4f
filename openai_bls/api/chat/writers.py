"""Writers of chat completions and completions: a stream of chunks, or one whole answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from openai_bls.api.chat.chunks import (
    Answer,
    AnswerMessage,
    ChatChoice,
    ChunkEncoder,
    CustomText,
    CustomToolCall,
    Envelope,
    FunctionText,
    TextChoice,
    ToolCall,
)
from openai_bls.api.chat.logprobs import CollectedLogprobs, LogprobRenderer
from openai_bls.api.common.events.answer_future import AnswerFuture
from openai_bls.api.common.events.event_sink import ChunkSink
from openai_bls.api.common.events.tee import Tee
from openai_bls.core.errors import ApiError
from openai_bls.core.logprobs import TokenLogprob
from openai_bls.core.usage import FinishReason, Usage
from openai_bls.pipeline.generation.collector import GrowingText
from openai_bls.pipeline.generation.sequence_state import SequenceState
from openai_bls.pipeline.generation.writer import Writer


class StreamWriter:
    """Writes chunks to a sink as the text comes.

    Args:
        encoder: encoder of the chunks.
        sink: receiver of the chunks.
        envelope: envelope of the request.
        include_usage: whether a last chunk carries the usage.
        renderer: renderer of log-probabilities, for requests that want them.
    """

    def __init__(
        self,
        encoder: ChunkEncoder,
        sink: ChunkSink,
        envelope: Envelope,
        *,
        include_usage: bool,
        renderer: LogprobRenderer | None = None,
    ) -> None:
        self._encoder = encoder
        self._sink = sink
        sink.begin(encoder)
        self._envelope = envelope
        self._include_usage = include_usage
        self._renderer = renderer
        # By choice, what goes out with its next chunk.
        self._logprobs: dict[int, list[TokenLogprob]] = {}
        # Calls of custom tools, as (choice, call).
        self._custom: set[tuple[int, int]] = set()
        # Chat choices whose first delta, the one with the role, is still to come.
        self._roleless = set(range(envelope.choices)) if envelope.chat else set()
        self.usage: Callable[[], Usage] | None = None
        """The counts up to now, for `continuous_usage_stats`; None without it."""

    def recorded(self) -> tuple[Writer, Callable[[Usage], Answer[Any]]]:
        """This writer and one of the whole answer, which has the same id."""
        # A stream has as many candidates as answers.
        whole = AnswerWriter(self._envelope, candidates=1, n=1, renderer=self._renderer)
        return Tee(self, whole), whole.make_answer

    def open(self) -> None:
        """Write the role of every choice now instead of with its first delta."""
        for index in sorted(self._roleless):
            self._write_role(index)
        self._roleless.clear()

    def logprobs(self, sequence: SequenceState, tokens: list[TokenLogprob]) -> None:
        """Keep them for the next chunk."""
        self._logprobs.setdefault(sequence.index, []).extend(tokens)

    def text(self, sequence: SequenceState, text: str) -> None:
        """A piece of content."""
        index = sequence.index
        if self._roleless:
            self._role(index)
        logprobs = self._take_logprobs(index) if self._logprobs else None
        if logprobs is None:
            self._sink.text(index, text, None if self.usage is None else self.usage())
        else:
            self._sink.write(self._encoder.text_with_logprobs(index, text, logprobs, self._usage()))

    def reasoning(self, sequence: SequenceState, text: str) -> None:
        """A piece of reasoning."""
        self._delta(sequence, {"reasoning_content": text, "reasoning": text})

    def tool_call(self, sequence: SequenceState, index: int, call_id: str, name: str) -> None:
        """The name and id of a tool call, which come once."""
        call: dict[str, Any] = {"index": index, "id": call_id}
        if name in sequence.custom_tools:
            self._custom.add((sequence.index, index))
            call |= {"type": "custom", "custom": {"name": name, "input": ""}}
        else:
            call |= {"type": "function", "function": {"name": name, "arguments": ""}}
        self._delta(sequence, {"tool_calls": [call]})

    def tool_arguments(self, sequence: SequenceState, index: int, fragment: str) -> None:
        """A fragment of a tool call's arguments."""
        if (sequence.index, index) in self._custom:
            call: dict[str, Any] = {"index": index, "custom": {"input": fragment}}
        else:
            call = {"index": index, "function": {"arguments": fragment}}
        self._delta(sequence, {"tool_calls": [call]})

    def finished(self, sequence: SequenceState, reason: FinishReason) -> None:
        """The choice's last chunk."""
        index = sequence.index
        self._role(index)
        self._sink.write(self._encoder.finish(index, reason, self._take_logprobs(index), self._usage()))

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
            self._write_role(index)

    def _write_role(self, index: int) -> None:
        # The first token is counted by now, but comes with the next chunk.
        usage = self._usage()
        first = len(self._roleless) + 1 >= self._envelope.choices
        self._sink.write(self._encoder.role(index, Usage.of(usage.prompt_tokens, 0) if usage and first else usage))

    def _delta(self, sequence: SequenceState, delta: dict[str, Any]) -> None:
        self._role(sequence.index)
        logprobs = self._take_logprobs(sequence.index)
        self._sink.write(self._encoder.delta(sequence.index, delta, logprobs, self._usage()))

    def _take_logprobs(self, index: int) -> dict[str, Any] | None:
        tokens = self._logprobs.pop(index, None)
        return self._renderer.render(tokens) if tokens and self._renderer is not None else None


@dataclass
class _Parts:
    """Collected output of one choice."""

    text: GrowingText = field(default_factory=GrowingText)
    thoughts: GrowingText = field(default_factory=GrowingText)
    calls: list[tuple[str, str, GrowingText, bool]] = field(default_factory=list)
    """(id, name, arguments, whether the tool is a custom one)."""
    logprobs: CollectedLogprobs | None = None
    """Log-probabilities of the tokens; None if they are not wanted."""
    likelihoods: float = 0.0
    """Sum of the log-probabilities of the new tokens, as many as `counted`."""
    counted: int = 0
    reason: FinishReason = "stop"

    def add(self, tokens: list[TokenLogprob], *, new: bool) -> int:
        """Add log-probabilities of tokens, which are new ones or a prompt's; bytes that are kept of them."""
        if new:
            values = [token.logprob for token in tokens if token.logprob is not None]
            self.likelihoods += sum(values)
            self.counted += len(values)
        return 0 if self.logprobs is None else self.logprobs.add(tokens)

    @property
    def likelihood(self) -> float:
        """Mean log-probability of the new tokens, by which answers of different lengths can be compared."""
        return self.likelihoods / self.counted if self.counted else float("-inf")


class AnswerWriter(AnswerFuture[Answer[Any]]):
    """Collects everything and resolves `answer` at the end.

    Args:
        envelope: envelope of the request.
        candidates: sequences for each prompt.
        n: number of them that are answered, the likeliest.
        renderer: renderer of log-probabilities, for requests that want them.
    """

    def __init__(self, envelope: Envelope, *, candidates: int, n: int, renderer: LogprobRenderer | None = None) -> None:
        super().__init__()
        collected = (None if renderer is None else CollectedLogprobs(renderer) for _ in range(envelope.choices))
        self._parts = [_Parts(logprobs=logprobs) for logprobs in collected]
        self._envelope = envelope
        self._candidates = candidates
        self._n = n
        self._kv_transfer_params: dict[str, Any] | None = None

    def logprobs(self, sequence: SequenceState, tokens: list[TokenLogprob]) -> None:
        """Log-probabilities of tokens."""
        # An echoed prompt comes before the first new token is counted.
        self._hold(self._parts[sequence.index].add(tokens, new=sequence.completion_tokens > 0))

    def text(self, sequence: SequenceState, text: str) -> None:
        """A piece of content."""
        self._grow(self._parts[sequence.index].text, text)

    def reasoning(self, sequence: SequenceState, text: str) -> None:
        """A piece of reasoning."""
        self._grow(self._parts[sequence.index].thoughts, text)

    def tool_call(self, sequence: SequenceState, index: int, call_id: str, name: str) -> None:
        """A tool call begins."""
        assert index == len(self._parts[sequence.index].calls)
        self._parts[sequence.index].calls.append((call_id, name, GrowingText(), name in sequence.custom_tools))

    def tool_arguments(self, sequence: SequenceState, index: int, fragment: str) -> None:
        """A fragment of a tool call's arguments."""
        self._grow(self._parts[sequence.index].calls[index][2], fragment)

    def finished(self, sequence: SequenceState, reason: FinishReason) -> None:
        """The choice has ended."""
        parts = self._parts[sequence.index]
        parts.reason = reason
        self._hold(sum(text.join() for text in (parts.text, parts.thoughts, *(call[2] for call in parts.calls))))
        if sequence.index == 0:
            self._kv_transfer_params = sequence.kv_transfer_params

    def make_answer(self, usage: Usage) -> Answer[Any]:
        """The answer."""
        envelope = self._envelope
        return Answer(
            id=envelope.id,
            object="chat.completion" if envelope.chat else "text_completion",
            created=envelope.created,
            model=envelope.model,
            choices=self._choices(self._parts if self._n == self._candidates else self._best()),
            usage=usage,
            system_fingerprint=envelope.fingerprint,
            kv_transfer_params=msgspec.UNSET if self._kv_transfer_params is None else self._kv_transfer_params,
        )

    def _best(self) -> list[_Parts]:
        """The `n` likeliest answers to each prompt, the likeliest first."""
        best: list[_Parts] = []
        for start in range(0, len(self._parts), self._candidates):
            candidates = self._parts[start : start + self._candidates]
            best += sorted(candidates, key=lambda parts: parts.likelihood, reverse=True)[: self._n]
        return best

    def _choices(self, answers: list[_Parts]) -> list[ChatChoice] | list[TextChoice]:
        if not self._envelope.chat:
            return [TextChoice(i, p.text.whole, _logprobs(p), p.reason) for i, p in enumerate(answers)]
        return [ChatChoice(i, _message(p), _logprobs(p), p.reason) for i, p in enumerate(answers)]


def _logprobs(parts: _Parts) -> dict[str, Any] | None:
    return None if parts.logprobs is None else parts.logprobs.answer()


def _message(parts: _Parts) -> AnswerMessage:
    content: str | None = parts.text.whole
    thoughts = parts.thoughts.whole or msgspec.UNSET
    calls = [
        CustomToolCall(call_id, CustomText(name, arguments.whole))
        if custom
        else ToolCall(call_id, FunctionText(name, arguments.whole))
        for call_id, name, arguments, custom in parts.calls
    ]
    # A message that is all thought or calls has no content, not an empty one.
    if not content and (calls or thoughts is not msgspec.UNSET):
        content = None
    return AnswerMessage(
        "assistant", content, reasoning_content=thoughts, reasoning=thoughts, tool_calls=calls or msgspec.UNSET
    )
