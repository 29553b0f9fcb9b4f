"""Discrete-event simulation of clients, an admission and an engine, in virtual time."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from openai_bls.core.errors import ApiError, RateLimitError, RequestDeadlineError
from openai_bls.core.keys.key_limits import NO_LIMITS, KeyLimits
from openai_bls.core.request import Deadline
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.admission.admission import Admission
from openai_bls.pipeline.admission.ticket import Ticket

_HOP_S = 0.001
"""Seconds from the admission to the engine, and back."""


class Clock:
    """Virtual time, and what happens when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Have `call` made `seconds` from now."""
        heapq.heappush(self._due, (self.now + seconds, next(self._count), call))

    def run(self) -> None:
        """Let everything happen."""
        while self._due:
            self.now, _, call = heapq.heappop(self._due)
            call()


@dataclass(frozen=True)
class Pace:
    """Speed of an engine."""

    batch: int = 16
    """Sequences at once."""
    step_s: Callable[[float, int], float] = lambda now, running: 0.02
    """Seconds of a step that begins at a time, with so many sequences."""
    prefill_s: float = 1e-4
    """Seconds by which a prompt makes the step longer in which it begins, per token."""
    first_s: float = 0.0
    """Seconds of a prompt in which the others go on."""


@dataclass(frozen=True)
class Need:
    """A request. Only the engine knows `output_tokens`, of which its answer will be."""

    key: str = ""
    prompt_tokens: int = 32
    output_tokens: int = 64
    max_tokens: int = 64
    timeout_s: float = math.inf


class Engine:
    """In-flight batching: a token per running sequence and step; first come, first served."""

    def __init__(self, clock: Clock, pace: Pace) -> None:
        self._clock = clock
        self._pace = pace
        self._waiting: deque[Attempt] = deque()
        self._running: list[Attempt] = []
        self._stepping = False

    def submit(self, attempt: Attempt) -> None:
        """Take a sequence."""
        self._waiting.append(attempt)
        if not self._stepping:
            self._begin()

    def cancel(self, attempt: Attempt) -> None:
        """Drop a sequence, if it is there."""
        for held in (self._waiting, self._running):
            if attempt in held:
                held.remove(attempt)

    def _begin(self) -> None:
        seconds = 0.0
        while self._waiting and len(self._running) < self._pace.batch:
            attempt = self._waiting.popleft()
            attempt.due_at = self._clock.now + self._pace.first_s
            seconds += self._pace.prefill_s * attempt.need.prompt_tokens
            self._running.append(attempt)
        self._stepping = bool(self._running)
        if self._stepping:
            self._clock.after(seconds + self._pace.step_s(self._clock.now, len(self._running)), self._end)

    def _end(self) -> None:
        running, self._running = self._running, []
        for attempt in running:
            attempt.tokens += attempt.due_at <= self._clock.now
            if attempt.tokens < attempt.need.output_tokens:
                self._running.append(attempt)
            if attempt.tokens in (1, attempt.need.output_tokens):
                self._clock.after(_HOP_S, attempt.came)
        self._begin()


class Attempt:
    """A request that was not refused: the admission's job."""

    def __init__(self, world: World, need: Need, ticket: Ticket, on_end: Callable[[str, Attempt], None]) -> None:
        self.need = need
        self.began_at = world.clock.now
        self.first_at: float | None = None
        self.tokens = 0
        self.due_at = 0.0
        """Time before which it has no token."""
        self._world = world
        self._ticket = ticket
        self._on_end = on_end
        self._submitted = self._ended = False
        if ticket.deadline is not None:
            world.clock.after(need.timeout_s, self._overdue)
        ticket.enter(self)

    def submit(self, count: int) -> None:
        """As `Job` has it."""
        assert count == 1
        assert not self._submitted
        assert not self._ended
        self._submitted = True
        self._world.clock.after(_HOP_S, self._arrive)

    def fail(self, error: ApiError) -> None:
        """As `Job` has it."""
        self._end("late" if self._submitted else "expired")

    def came(self) -> None:
        """A token has come."""
        if self._ended:
            return
        if self.first_at is None:
            self.first_at = self._world.clock.now
        if self.tokens == self.need.output_tokens:
            self._end("answered")

    def _arrive(self) -> None:
        if not self._ended:
            self._world.engine.submit(self)

    def _overdue(self) -> None:
        if not self._ended:
            self.fail(RequestDeadlineError(self.need.timeout_s, waited=not self._submitted))

    def _end(self, outcome: str) -> None:
        assert not self._ended
        self._ended = True
        self._world.engine.cancel(self)
        self._on_end(outcome, self)
        self._ticket.leave(self.tokens, self.first_at, done=outcome == "answered")


@dataclass
class Seen:
    """What came of the requests of one key that ended in the window."""

    outcomes: Counter[str] = field(default_factory=Counter)
    first_s: list[float] = field(default_factory=list)
    """Seconds to each first token."""
    tokens: int = 0
    """Of prompts and answers that were in time."""


class World:
    """An engine, its admission, and clients until the end of a window in which is counted what comes of them.

    Args:
        pace: of the engine.
        window: begin and end, in seconds.
        limits: of keys.
    """

    def __init__(self, pace: Pace, window: tuple[float, float], limits: dict[str, KeyLimits] | None = None) -> None:
        self.clock = Clock()
        self.random = random.Random(1)
        self.engine = Engine(self.clock, pace)
        self.window = window
        self.asked = self.ended = 0
        self.seen: defaultdict[str, Seen] = defaultdict(Seen)
        self.admission = Admission(
            lambda: pace.batch,
            OpenAiBlsSettings(),
            lambda key: (limits or {}).get(key, NO_LIMITS),
            clock=lambda: self.clock.now,
        )

    def ask(self, need: Need, then: Callable[[float], None] = lambda retry_after_s: None) -> None:
        """Send a request; `then` is called at its end, with the seconds to wait if it was refused, else 0."""
        self.asked += 1
        timeout_s = need.timeout_s
        deadline = None if timeout_s == math.inf else Deadline(self.clock.now + timeout_s, timeout_s)

        def ended(outcome: str, attempt: Attempt | None, retry_after_s: float = 0.0) -> None:
            self.ended += 1
            self.clock.after(0, lambda: then(retry_after_s))
            if not self.window[0] <= self.clock.now < self.window[1]:
                return
            seen = self.seen[need.key]
            seen.outcomes[outcome] += 1
            if outcome == "answered":
                seen.tokens += need.prompt_tokens + need.output_tokens
            if attempt is not None and attempt.first_at is not None:
                seen.first_s.append(attempt.first_at - attempt.began_at)

        try:
            ticket = self.admission.ticket(need.key, need.prompt_tokens, need.max_tokens, 1, deadline)
        except RateLimitError as error:
            ended(error.reason, None, error.retry_after_s or 0.0)
        else:
            Attempt(self, need, ticket, ended)

    def arrivals(self, need: Callable[[World], Need], rate: Callable[[float], float]) -> None:
        """Open loop: requests at random, at a rate per second at a time, whatever becomes of them."""

        def arrive() -> None:
            if self.clock.now < self.window[1]:
                self.ask(need(self))
                self.clock.after(self.random.expovariate(rate(self.clock.now)), arrive)

        self.clock.after(0, arrive)

    def client(self, need: Callable[[World], Need], *, obedient: bool = True) -> None:
        """Closed loop: asks again 50 ms after each answer; if refused, after `Retry-After` if it is obedient."""

        def again(retry_after_s: float) -> None:
            if self.clock.now < self.window[1]:
                wait_s = retry_after_s if obedient and retry_after_s else 0.05
                self.clock.after(wait_s * self.random.uniform(0.9, 1.1), lambda: self.ask(need(self), again))

        again(0)

    def run(self) -> World:
        """Let everything happen, to the end of the last request."""
        self.clock.run()
        assert self.ended == self.asked
        assert (self.admission.running, self.admission.waiting) == (0, 0)
        return self

    def answers(self) -> int:
        """Requests that were answered in time."""
        return sum(seen.outcomes["answered"] for seen in self.seen.values())
