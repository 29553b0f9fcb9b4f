"""Admission to an engine: requests start while it has room, and wait for it here, in a fair order and within bounds.

The engine is given as many sequences as it runs at once, and a few ahead so that no place in its batch stays empty.
What waits beyond that waits here, where it can still be ordered by key (`fair_queue`), refused, or given up, and not in
the engine's own queue, which knows nothing of keys. A few places are kept free for keys that run nothing: else long
answers to one key would make another wait until one of them ends. Where there are several keys, places are given by
the sequence: a request of more sequences than there is room for starts with as many as there is, and the others take
their key's turns one by one. A request of a key that runs nothing gets one of the places that are kept free, not more.
And a key has few prompts in the engine that it has not read (`prompt_share`).
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal

from openai_bls.core.engine import EngineStats
from openai_bls.core.errors import ApiError, EngineError, RateLimitError, RequestDeadlineError
from openai_bls.core.keys.key_limits import NO_LIMITS, KeyLimits
from openai_bls.core.request import Deadline
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.admission.fair_queue import FairQueue, Part
from openai_bls.pipeline.admission.prompt_share import PromptShare
from openai_bls.pipeline.admission.throughput import DrainRate, ServiceTime
from openai_bls.pipeline.admission.ticket import Ticket

logger = logging.getLogger(__name__)

WAY_S = 0.003
"""Seconds from the end of a sequence to the arrival of the next one in the engine."""
_MARGIN = 1.1
"""Factor of estimates that are held against a deadline: work that ends just too late is lost."""
_ALWAYS = 0.75
"""Share of an engine's places that are filled whatever the estimates say, so that wrong ones are put right."""


class Admission:
    """Admission to one engine. Belongs to the event loop's thread.

    Args:
        capacity: sequences that the engine runs at once.
        settings: settings with the limits of the queue.
        limits: gives the limits of a key.
        stats: the engine's load, if it is known.
        instances: number of `openai_bls` instances that share the engine.
        on_waiting: called with the change of requests and prompt tokens that wait, none of whose sequences has started.
        several_keys: tells whether there are several API keys, between which places are shared.
        clock: seconds, as `time.monotonic`.
        step_tokens: gives the tokens of a step of the engine; 0 where that is not known.
    """

    def __init__(
        self,
        capacity: Callable[[], int],
        settings: OpenAiBlsSettings,
        limits: Callable[[str], KeyLimits] = lambda key: NO_LIMITS,
        stats: Callable[[], EngineStats | None] = lambda: None,
        instances: int = 1,
        on_waiting: Callable[[int, int], None] = lambda requests, tokens: None,
        several_keys: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        step_tokens: Callable[[], int] = lambda: 0,
    ) -> None:
        self._capacity = capacity
        self._settings = settings
        self._limits = limits
        self._stats = stats
        self._instances = instances
        self._on_waiting = on_waiting
        self._several_keys = several_keys
        self._clock = clock
        self._queue = FairQueue(lambda key: limits(key).weight)
        self._drain = DrainRate()
        self._service = ServiceTime()
        self._seen: EngineStats | None = None
        self._share = math.inf
        """Sequences that this instance may have in an engine that others fill, too."""
        self._starting = False
        self._prompts = PromptShare(step_tokens)
        self._running_of: Counter[str] = Counter()
        """Sequences that the engine has, by the name of their API key."""
        self.running = 0
        """Sequences that the engine has from here."""

    @property
    def waiting(self) -> int:
        """Requests that wait, or some of whose sequences do."""
        return self._queue.count

    # --- refusal ---

    def check(
        self,
        key: str,
        deadline: Deadline | None = None,
        *,
        max_tokens: float = math.inf,
        prompt_tokens: int = 0,
        priority: int = 0,
    ) -> None:
        """Refuse a request that would have to wait, and for which the queue has no room, or that would be too late.

        Args:
            key: name of its API key.
            deadline: time by which the request must be answered; None if it has none.
            max_tokens: most tokens that each sequence of the request may generate.
            prompt_tokens: 0 before they are known.
            priority: the lower, the earlier among the requests of its key.

        Raises:
            RateLimitError: it is refused.
        """
        own = self._queue.of(key)
        if self._queue.count and not self._overtakes(key):
            self._check_bounds(key, prompt_tokens)
        if deadline is None or not (self._running_of[key] or (own is not None and own.count)):
            # However wrong the estimates are, they keep nobody out who has nothing here.
            return
        wait_s = needed_s = 0.0
        if self._queue.count or self.running >= self._most_for_running():
            wait_s = self.wait_s(key, priority) or 0.0
            needed_s = wait_s + self._service.most_s(key, max_tokens)
        elif self.running >= self._capacity() * _ALWAYS:
            # It has its whole time still, as those that come after it would: it is refused only if the engine is so
            # full already that a usual answer would be late.
            needed_s = self._service.usual_s(key, self.running + 1, max_tokens)
        if self._late(deadline, needed_s):
            raise RateLimitError(
                f"The engine is busy: the answer would come after the timeout of {deadline.timeout_s:g} s.",
                reason="too_late",
                retry_after_s=wait_s,
            )

    def ticket(
        self,
        key: str,
        prompt_tokens: int,
        max_tokens: int,
        sequences: int,
        deadline: Deadline | None = None,
        priority: int = 0,
    ) -> Ticket:
        """Place of a request that is ready for the engine.

        Args:
            key: name of its API key.
            prompt_tokens: tokens of all prompts of the request.
            max_tokens: most tokens that each sequence may generate.
            sequences: number of them.
            deadline: time by which the request must be answered; None if it has none.
            priority: the lower, the earlier among the requests of its key.

        Raises:
            RateLimitError: it is refused, as by `check`.
        """
        self.check(key, deadline, max_tokens=max_tokens, prompt_tokens=prompt_tokens, priority=priority)
        cost_tokens = max(1, prompt_tokens + int(sequences * min(max_tokens, self._service.expected_tokens(key))))
        return Ticket(self, key, prompt_tokens, cost_tokens, max_tokens, sequences, deadline, priority)

    def _check_bounds(self, key: str, prompt_tokens: int) -> None:
        """Refuse what the bounds of the queue, or those of its key, do not allow to wait."""
        queue, settings = self._queue, self._settings
        self._check_room(
            key,
            "",
            queue.count,
            queue.prompt_tokens + prompt_tokens,
            settings.max_waiting_requests,
            settings.max_waiting_tokens,
        )
        own = queue.of(key) if key else None
        if own is not None and own.count:
            limits = self._limits(key)
            self._check_room(
                key,
                " of this API key",
                own.count,
                own.prompt_tokens + prompt_tokens,
                limits.max_waiting_requests or settings.max_waiting_requests_per_key,
                limits.max_waiting_tokens or settings.max_waiting_tokens_per_key,
            )

    def _check_room(self, key: str, whose: str, count: int, tokens: int, most: int, most_tokens: int) -> None:
        kind: Literal["requests", "tokens"]
        if count >= most:
            kind, message = "requests", f"{count} requests{whose} wait for the engine, the most that may."
        elif tokens > most_tokens:
            kind, message = (
                "tokens",
                f"{tokens} prompt tokens{whose} would wait for the engine, of {most_tokens} at most.",
            )
        else:
            return
        raise RateLimitError(message, reason="queue_full", kind=kind, retry_after_s=self.wait_s(key) or 1.0)

    def wait_s(self, key: str, priority: int | None = None) -> float | None:
        """Seconds that a request of `key` would wait by the throughput measured; None if none has been.

        Args:
            key: name of its API key.
            priority: priority of the request; None is behind all that its key has waiting.
        """
        rate = self._drain.tokens_per_s
        if rate is None:
            return None
        tokens = float(self._queue.cost_tokens)
        own = self._queue.of(key)
        own_tokens = 0
        if own is not None:
            own_tokens = own.cost_tokens if priority is None else own.cost_ahead(priority)
            tokens -= own.cost_tokens - own_tokens
        weight = self._limits(key).weight
        others = self._queue.weights - (own.weight if own is not None and own.count else 0.0)
        # Its key's turn comes round with the others' turns between, whatever else these have waiting.
        return min(tokens, own_tokens * (weight + others) / weight) / rate

    def _late(self, deadline: Deadline, needed_s: float) -> bool:
        """Whether what needs so many seconds from now on would be too late."""
        return self._clock() + needed_s * _MARGIN > deadline.at

    # --- the way through ---

    def enter(self, ticket: Ticket) -> None:
        """See `Ticket`, as for the next two."""
        count = self._places_for(ticket)
        if count == ticket.left:
            ticket.left = ticket.cost_left = 0
            self._start(ticket, count)
            return
        if not self._queue.count:
            self._drain.begin(self._clock())
        if count:
            # The rest is queued first: a request whose submission fails leaves within `_start`, with all that it has.
            ticket.cost_left -= ticket.cost_left * count // ticket.left
            ticket.left -= count
            self._queue.push(ticket)
            self._start(ticket, count)
        else:
            self._queue.push(ticket)
            self._on_waiting(1, ticket.prompt_tokens)
        # A queue may be left behind by an engine that has grown.
        self._start_next()

    def sequence_began(self, ticket: Ticket) -> None:
        """See `Ticket`."""
        if ticket.unread:
            self._prompts.read(ticket)
            if self._queue.count:
                self._start_next()

    def sequence_ended(self, ticket: Ticket) -> None:
        """See `Ticket`."""
        if ticket.running:
            ticket.running -= 1
            self.running -= 1
            self._running_of[ticket.key] -= 1
            if ticket.unread > ticket.running:
                self._prompts.read(ticket)
            if self._queue.count:
                self._start_next()

    def leave(self, ticket: Ticket, output_tokens: int, first_token_at: float | None, *, done: bool) -> None:
        """See `Ticket`."""
        if self._queue.remove(ticket):
            if ticket.started_at is None:
                self._on_waiting(-1, -ticket.prompt_tokens)
            if not self._queue.count:
                self._drain.moved(self._clock(), 0, more=False)
        if ticket.started_at is None:
            return
        self._prompts.read(ticket, ticket.unread)
        self._running_of[ticket.key] -= ticket.running
        among = (ticket.among + self.running) / 2
        self.running -= ticket.running
        ticket.running = 0
        begun = ticket.sequences - ticket.left
        first_s = None if first_token_at is None else first_token_at - ticket.started_at
        # Of a request in parts that is the time of the last one: the whole time has waits between them.
        seconds = self._clock() - ticket.given_at
        if first_s is not None and ticket.given_at > ticket.started_at and first_s >= seconds:
            first_s = None
        self._service.add(ticket.key, among, first_s, seconds, output_tokens / begun, done=done)
        if self._queue.count:
            prompt_tokens = ticket.prompt_tokens * begun // ticket.sequences
            self._queue.charge(ticket.key, prompt_tokens + output_tokens - (ticket.cost_tokens - ticket.cost_left))
            self._start_next()

    def close(self, error: ApiError) -> None:
        """End everything that waits with `error`."""
        self._starting = True
        while (part := self._queue.pop()) is not None:
            ticket = part.ticket
            if ticket.started_at is None:
                self._on_waiting(-1, -ticket.prompt_tokens)
            assert ticket.job is not None
            ticket.job.fail(error)

    def _start_next(self) -> None:
        """Start what waits as long as there is room."""
        if self._starting:
            # A job that ends at once, within the loop below, which goes on.
            return
        self._starting = True
        most = 1 if self._several_keys() else math.inf
        try:
            while (part := self._next(most)) is not None:
                ticket = part.ticket
                if ticket.started_at is None and self._expired(ticket):
                    continue
                self._drain.moved(self._clock(), part.cost_tokens, more=bool(self._queue.count))
                self._start(ticket, part.sequences)
        finally:
            self._starting = False

    def _expired(self, ticket: Ticket) -> bool:
        """Whether a ticket whose turn has come is too late, and has failed; then none of it waits any more."""
        self._on_waiting(-1, -ticket.prompt_tokens)
        deadline = ticket.deadline
        needed_s = self._service.most_s(ticket.key, ticket.max_tokens) if self._running_of[ticket.key] else 0.0
        if deadline is None or not self._late(deadline, needed_s):
            return False
        # Only its next part has been taken out.
        self._queue.remove(ticket)
        self._drain.moved(self._clock(), 0, more=bool(self._queue.count))
        assert ticket.job is not None
        ticket.job.fail(RequestDeadlineError(deadline.timeout_s, waited=True))
        return True

    def _next(self, most: float) -> Part | None:
        """What may start next, `most` sequences of a request; None if there is nothing, or no place for it."""
        if not self._queue.count:
            return None
        if self.running < self._most_for_running():
            return self._queue.pop(most, self._unread_keys())
        if self.running < self._most():
            return self._queue.pop_of(self._runs_nothing, most)
        return None

    def _places_for(self, ticket: Ticket) -> int:
        """Sequences of a new ticket that may start at once."""
        if not self._queue.count and (room := math.ceil(self._most_for_running() - self.running)) > 0:
            return min(ticket.left, room, self._prompts.room(ticket)) if self._several_keys() else ticket.left
        return 1 if self._overtakes(ticket.key) else 0

    def _overtakes(self, key: str) -> bool:
        """Whether a key has nothing here, and there is a place that is kept free for such keys."""
        own = self._queue.of(key)
        return (
            self._several_keys()
            and self._runs_nothing(key)
            and not (own is not None and own.count)
            and self.running < self._most()
        )

    def _unread_keys(self) -> list[str]:
        """Keys that wait until the engine has read more of their prompts."""
        if not self._several_keys():
            return []
        queues = [(key, self._queue.of(key)) for key in self._prompts.keys]
        return [key for key, own in queues if own is not None and own.count and not self._prompts.room(own.first())]

    def _runs_nothing(self, key: str) -> bool:
        return not self._running_of[key]

    def _start(self, ticket: Ticket, count: int) -> None:
        """Give a ticket `count` places, for its next sequences."""
        now = ticket.given_at = self._clock()
        ticket.running += count
        self.running += count
        self._running_of[ticket.key] += count
        self._prompts.sent(ticket, count)
        if ticket.started_at is None:
            ticket.started_at = now
            ticket.among = self.running
        assert ticket.job is not None
        if not self._starting:
            ticket.job.submit(count)
            return
        try:
            ticket.job.submit(count)
        except Exception:
            # The call is that of another request, which must not fail of it.
            logger.exception("a request could not be started")
            ticket.job.fail(EngineError("The server had an error; see its log."))

    def _most(self) -> float:
        """Sequences that the engine may have from here."""
        capacity = self._capacity()
        # What ends in the step in which the next ones are on their way, on average.
        ahead = max(1, round(capacity * self._service.share_per_step(self.running + 1, WAY_S)))
        if self._instances > 1:
            self._look_at_stats(capacity, ahead)
        return min(capacity, self._share) + ahead

    def _most_for_running(self) -> float:
        """The same for keys that have requests in the engine: without the places that are kept free, and none ahead,
        which would wait for these in the engine."""
        most, capacity = self._most(), self._capacity()
        reserved = int(capacity * self._settings.reserved_places_share) if self._several_keys() else 0
        return max(1, min(most, capacity) - reserved) if reserved else most

    def _look_at_stats(self, capacity: int, ahead: int) -> None:
        """Take a share of an engine whose places other instances take as well, so that little waits in its own
        queue."""
        stats = self._stats()
        if stats is None or stats is self._seen:
            return
        self._seen = stats
        if stats.running < capacity or not stats.waiting:
            # It has places, or would have if it had the memory: then fewer sequences would be no help.
            self._share = math.inf
        elif stats.waiting > 2 * ahead:
            # The load is as old as it may be, hence a bound.
            share = self.running * stats.running / (stats.running + stats.waiting)
            self._share = max(share, capacity / self._instances)
        else:
            self._share *= 1.25
