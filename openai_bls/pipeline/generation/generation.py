"""Generation of one request: its sequences, from submission to the end of the answer.

Everything here runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable

from openai_bls.core.errors import ApiError, EngineError, RequestDeadlineError
from openai_bls.core.request import Deadline
from openai_bls.core.request_record import Outcome, Progress
from openai_bls.core.usage import FinishReason, Usage
from openai_bls.pipeline.admission.admission import Admission
from openai_bls.pipeline.admission.ticket import Ticket
from openai_bls.pipeline.generation.sequence import Sequence
from openai_bls.pipeline.generation.sequence_state import SequenceState
from openai_bls.pipeline.generation.writer import Writer
from openai_bls.pipeline.lifecycle.life import Life
from openai_bls.pipeline.metrics.adapters import AdapterRequest
from openai_bls.pipeline.models.registry import EngineClient

logger = logging.getLogger(__name__)


class Generation:
    """All sequences of one request, from submission to the last answer.

    Args:
        engine: client of the engine.
        sequences: sequences of the request.
        writer: writer of the sequences.
        prompt_tokens: number of tokens of each prompt; the sequences of a prompt follow each other.
        on_end: called once, however it ends, with the outcome and the progress up to then.
        ticket: place in the admission to the engine; None submits at once.
        adapter: count of its adapter's requests; None if it is not counted.
    """

    def __init__(
        self,
        engine: EngineClient,
        sequences: list[Sequence],
        writer: Writer,
        prompt_tokens: list[int],
        on_end: Callable[[Outcome, Progress], None],
        ticket: Ticket | None = None,
        adapter: AdapterRequest | None = None,
    ) -> None:
        self._engine = engine
        self._sequences = sequences
        self._to_submit = iter(sequences)
        self._writer = writer
        self._prompt_tokens = sum(prompt_tokens)
        self._per_prompt = len(sequences) // len(prompt_tokens)
        self._on_end = on_end
        self._ticket = ticket
        self._adapter = adapter
        self._timer: asyncio.TimerHandle | None = None
        self._running = len(sequences)
        self._ended = False
        self.first_token_at: float | None = None
        """`time.monotonic()` of the first new token."""
        self._queued_at: float | None = None
        self._submitted_at: float | None = None
        self.engine_queue_s: float | None = None
        """Seconds that the first sequence waited in the engine for a place in the batch, where the engine tells it."""

    def start(self, before: Callable[[], None] | None = None) -> None:
        """Begin: every sequence goes to the engine now, or when it has room; if that fails, all are cancelled.

        Args:
            before: called first, as a part of it.
        """
        try:
            if before is not None:
                before()
            ticket = self._ticket
            self._queued_at = time.monotonic()
            if self._adapter is not None:
                self._adapter.waits()
            if ticket is None:
                self.submit(len(self._sequences))
                return
            deadline = ticket.deadline
            if deadline is not None:
                self._timer = asyncio.get_running_loop().call_later(deadline.left_s, self._overdue, deadline.timeout_s)
            ticket.enter(self)
        except BaseException:
            self.cancel()
            raise

    def submit(self, count: int) -> None:
        """Submit the next `count` sequences to the engine; if that fails, all are cancelled."""
        if self._submitted_at is None:
            self._submitted_at = time.monotonic()
            if self._adapter is not None:
                self._adapter.runs()
        part = list(itertools.islice(self._to_submit, count))
        try:
            for sequence in part:
                sequence.start(self)
            for sequence in part:
                self._engine.submit(sequence.request, sequence.on_delta)
        except BaseException:
            self.cancel()
            raise

    @property
    def ended(self) -> bool:
        """True once nothing more may be written."""
        return self._ended

    @property
    def usage(self) -> Usage:
        """Tokens up to now."""
        sequences = self._sequences
        completion = sum(sequence.completion_tokens for sequence in sequences)
        # A prompt counts once, and so does what was cached of it: by its first sequence, since the others share it.
        cached = sum(sequence.cached_tokens for sequence in sequences[:: self._per_prompt])
        reasoning = sum(sequence.reasoning_tokens for sequence in sequences)
        prediction = None
        if sequences[0].request.prediction:
            accepted = [sequence.predicted_tokens for sequence in sequences]
            length = len(sequences[0].request.prediction)
            prediction = sum(accepted), sum(max(0, length - count) for count in accepted)
        elif any(sequence.num_draft_tokens for sequence in sequences):
            kept = sum(sequence.num_accepted_tokens for sequence in sequences)
            prediction = kept, sum(sequence.num_draft_tokens for sequence in sequences) - kept
        # Only a conversation has images, and it is one prompt.
        media = sequences[0].request.media
        return Usage.of(
            self._prompt_tokens,
            completion,
            cached=cached,
            reasoning=reasoning,
            prediction=prediction,
            image=None if media is None else media.image_tokens,
        )

    def cancel(self) -> None:
        """Stop the engine's work and write nothing more: the client has gone. Harmless after the end."""
        if not self._ended:
            self._end("cancelled")
            self._cancel_running()
            self._leave(done=False)

    def fail(self, error: ApiError) -> None:
        """End the whole request with `error`: no answer lacks a choice."""
        if not self._ended:
            self._end(error)
            self._cancel_running()
            self._writer.failed(error)
            self._leave(done=False)

    def cancel_sequence(self, sequence: SequenceState) -> None:
        """Stop the engine's work on a sequence that has ended by itself, at a stop string."""
        self._engine.cancel(sequence.request.request_id)

    def sequence_began(self) -> None:
        """Count a sequence whose prompt the engine has read."""
        if self._ticket is not None:
            self._ticket.sequence_began()

    def sequence_ended(self) -> None:
        """Count a sequence that has written its finish_reason."""
        self._running -= 1
        if self._running and self._ticket is not None:
            self._ticket.sequence_ended()
        if self._running == 0 and not self._ended:
            usage = self._end("done")
            try:
                self._writer.done(usage)
            except Exception:
                # For all others this request has ended: only this tells the client.
                logger.exception("an answer could not be written")
                self._writer.failed(EngineError("The server had an error; see its log."))
            self._leave(done=True)

    @property
    def progress(self) -> Progress:
        """Progress up to now, for a record: what no engine was given has used no tokens."""
        return Progress(
            self.finish_reasons,
            Usage.of(0, 0) if self._submitted_at is None else self.usage,
            self.first_token_at,
            self._queued_at,
            self._submitted_at,
            self._queue_s,
        )

    @property
    def _queue_s(self) -> float | None:
        """Seconds of waiting: for the engine's turn, and in the engine where it tells that."""
        if self._queued_at is None:
            return None
        if self._submitted_at is None:
            return time.monotonic() - self._queued_at
        return self._submitted_at - self._queued_at + (self.engine_queue_s or 0.0)

    @property
    def finish_reasons(self) -> list[FinishReason]:
        """Finish reasons of the sequences that have ended."""
        return [sequence.finish_reason for sequence in self._sequences if sequence.finish_reason is not None]

    def _end(self, outcome: Outcome) -> Usage:
        """Tell of the end; the tokens up to it."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._adapter is not None:
            self._adapter.ended()
        progress = self.progress
        self._on_end(outcome, progress)
        return progress.usage

    def _leave(self, *, done: bool) -> None:
        """Make room for others."""
        if self._ticket is not None:
            tokens = sum(sequence.completion_tokens for sequence in self._sequences)
            self._ticket.leave(tokens, self.first_token_at, done=done)
            self._ticket.job = None
        # A cycle would keep the writer, with what may be a large answer, for long.
        for sequence in self._sequences:
            sequence.leave()

    def _overdue(self, timeout_s: float) -> None:
        assert self._ticket is not None
        self.fail(RequestDeadlineError(timeout_s, waited=self._ticket.started_at is None))

    def _cancel_running(self) -> None:
        for sequence in self._sequences:
            if sequence.finish_reason is None:
                self._engine.cancel(sequence.request.request_id)


def admitted_generation(
    life: Life,
    admission: Admission,
    model: str,
    engine: EngineClient,
    sequences: list[Sequence],
    writer: Writer,
    prompt_tokens: list[int],
    deadline: Deadline | None,
    adapter: AdapterRequest | None = None,
    *,
    priority: int = 0,
) -> Generation:
    """A generation with its place in the admission, still to be started. It ends the life of its request.

    Args:
        life: life of the request.
        admission: admission to the engine.
        model: name in the metrics.
        engine: client of the engine.
        sequences: sequences of the request.
        writer: writer of the sequences.
        prompt_tokens: number of tokens of each prompt.
        deadline: time by which the request must be answered; None if it has none.
        adapter: count of its adapter's requests; None if it is not counted.
        priority: the lower, the earlier among the requests of its key.

    Raises:
        RateLimitError: it would wait too long, or its key has not enough tokens left.
    """
    most = max(sequence.request.max_tokens for sequence in sequences)
    ticket = admission.ticket(life.key, sum(prompt_tokens), most, len(sequences), deadline, priority)
    life.lease.take_tokens(ticket.cost_tokens, ticket.prompt_tokens)
    life.taken(model)
    generation = Generation(engine, sequences, writer, prompt_tokens, life.ended, ticket, adapter)
    life.work = generation
    return generation
