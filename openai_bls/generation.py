"""One request while it runs: its sequences turn token deltas into text, and a writer turns that into answers.

Everything here runs on the event loop's thread, once per delta, with no await, task or lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from openai_bls.errors import ApiError, EngineError, engine_failure
from openai_bls.messages import GenerationRequest, TokenDelta
from openai_bls.protocol.responses import FinishReason, Usage
from openai_bls.text.detokenizer import Detokenizer
from openai_bls.text.stops import StopMatcher
from openai_bls.text.tools import (
    ContentDelta,
    Event,
    ToolCallArguments,
    ToolCallParser,
    ToolCallStart,
)

logger = logging.getLogger(__name__)


class EngineClient(Protocol):
    """The way to an engine; see `exchange.client.ExchangeClient`."""

    async def ready(self) -> None:
        """Wait for an engine that is being reloaded; raises OverloadedError if it does not come back."""
        ...

    def new_request_id(self) -> int:
        """An id that is unique among the engine's requests."""
        ...

    def submit(self, request: GenerationRequest, listener: Callable[[TokenDelta], None]) -> None:
        """Start a request; `listener` gets its deltas, the last of which has a finish_reason."""
        ...

    def cancel(self, request_id: int) -> None:
        """Stop a request; its listener hears nothing more."""
        ...


class Writer(Protocol):
    """Where the events of a request go: a stream of chunks or one whole answer (see `writers`)."""

    def text(self, sequence: Sequence, text: str) -> None:
        """A piece of content, never empty."""
        ...

    def tool_call(self, sequence: Sequence, index: int, call_id: str, name: str) -> None:
        """A tool call begins; its arguments follow."""
        ...

    def tool_arguments(self, sequence: Sequence, index: int, fragment: str) -> None:
        """A fragment of a tool call's arguments."""
        ...

    def finished(self, sequence: Sequence, reason: FinishReason) -> None:
        """This sequence has ended."""
        ...

    def done(self, usage: Usage) -> None:
        """All sequences have ended."""
        ...

    def failed(self, error: ApiError) -> None:
        """The request has failed; nothing more comes."""
        ...


class Sequence:
    """One sequence of a request: one prompt's one choice."""

    __slots__ = (
        "_detokenizer",
        "_generation",
        "_parallel_tool_calls",
        "_stops",
        "_tool_calls",
        "_tools",
        "_writer",
        "completion_tokens",
        "finish_reason",
        "index",
        "request",
    )

    def __init__(
        self,
        index: int,
        request: GenerationRequest,
        detokenizer: Detokenizer,
        writer: Writer,
        *,
        stops: StopMatcher | None = None,
        tools: ToolCallParser | None = None,
        parallel_tool_calls: bool = True,
    ) -> None:
        self.index = index
        self.request = request
        self.completion_tokens = 0
        self.finish_reason: FinishReason | None = None
        self._detokenizer = detokenizer
        self._writer = writer
        self._stops = stops
        self._tools = tools
        self._tool_calls = 0
        self._parallel_tool_calls = parallel_tool_calls
        self._generation: Generation | None = None

    def start(self, generation: Generation) -> None:
        """Become part of `generation`."""
        self._generation = generation

    def on_delta(self, delta: TokenDelta) -> None:
        """Take what an engine step brought; no exception leaves this."""
        assert self._generation is not None
        try:
            self._take(self._generation, delta)
        except Exception:
            logger.exception("a request failed")
            self._generation.fail(EngineError("The server had an error; see its log."))

    def _take(self, generation: Generation, delta: TokenDelta) -> None:
        # Cancelled, but not by this request's client, whose cancelling ends the listening: the engine is going away.
        failure = engine_failure(delta, cancelled="The engine is shutting down.")
        if failure is not None:
            generation.fail(failure)
            return
        self.completion_tokens += len(delta.token_ids)
        text = self._detokenizer.push(delta.token_ids)
        reason = delta.finish_reason
        if reason is not None:
            text += self._detokenizer.finish()
            # Sampled like any other token, although it is not delivered.
            self.completion_tokens += delta.stop_token_id is not None
        stopped = False
        if self._stops is not None:
            text, matched = self._stops.push(text)
            stopped = matched is not None
            if reason is not None and not stopped:
                text += self._stops.finish()
        if text:
            stopped = self._emit(text) or stopped
        if stopped:
            if reason is None:
                generation.cancel_sequence(self)
            self._end("stop")
        elif reason is not None:
            self._end("length" if reason == "length" else "stop")

    def _emit(self, text: str) -> bool:
        """Pass content on; True if the sequence is to stop here."""
        if self._tools is None:
            self._writer.text(self, text)
            return False
        return self._emit_events(self._tools.push(text))

    def _emit_events(self, events: list[Event]) -> bool:
        for event in events:
            if isinstance(event, ContentDelta):
                self._writer.text(self, event.text)
            elif isinstance(event, ToolCallStart):
                if self._tool_calls == 1 and not self._parallel_tool_calls:
                    self._tools = None
                    return True
                self._tool_calls += 1
                self._writer.tool_call(self, event.index, event.id, event.name)
            elif isinstance(event, ToolCallArguments):
                self._writer.tool_arguments(self, event.index, event.fragment)
        return False

    def _end(self, reason: FinishReason) -> None:
        assert self._generation is not None
        if self._tools is not None:
            self._emit_events(self._tools.finish())
        if reason == "stop" and self._tool_calls:
            reason = "tool_calls"
        self.finish_reason = reason
        self._writer.finished(self, reason)
        self._generation.sequence_ended()


class Generation:
    """All sequences of one request, from submission to the last answer.

    Args:
        prompt_tokens: of all prompts, each counted once.
        on_end: called once, however it ends.
    """

    def __init__(
        self,
        engine: EngineClient,
        sequences: list[Sequence],
        writer: Writer,
        prompt_tokens: int,
        on_end: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._sequences = sequences
        self._writer = writer
        self._prompt_tokens = prompt_tokens
        self._on_end = on_end
        self._running = len(sequences)
        self._ended = False

    def start(self) -> None:
        """Submit every sequence to the engine."""
        for sequence in self._sequences:
            sequence.start(self)
        for sequence in self._sequences:
            self._engine.submit(sequence.request, sequence.on_delta)

    @property
    def usage(self) -> Usage:
        """Tokens up to now."""
        completion = sum(sequence.completion_tokens for sequence in self._sequences)
        return Usage(self._prompt_tokens, completion, self._prompt_tokens + completion)

    def cancel(self) -> None:
        """The client has gone: stop the engine's work, write nothing more. Harmless after the end."""
        if self._end():
            self._cancel_running()

    def fail(self, error: ApiError) -> None:
        """End the whole request with `error`: an answer with a choice missing would be a lie."""
        if self._end():
            self._cancel_running()
            self._writer.failed(error)

    def cancel_sequence(self, sequence: Sequence) -> None:
        """Stop the engine's work on a sequence that has ended by itself, at a stop string."""
        self._engine.cancel(sequence.request.request_id)

    def sequence_ended(self) -> None:
        """A sequence has written its finish_reason."""
        self._running -= 1
        if self._running == 0 and self._end():
            self._writer.done(self.usage)

    def _end(self) -> bool:
        if self._ended:
            return False
        self._ended = True
        self._on_end()
        return True

    def _cancel_running(self) -> None:
        for sequence in self._sequences:
            if sequence.finish_reason is None:
                self._engine.cancel(sequence.request.request_id)
