"""A request's place in the admission, and the work that it holds the place for."""

from __future__ import annotations

from typing import Protocol

from openai_bls.core.errors import ApiError
from openai_bls.core.request import Deadline


class Job(Protocol):
    """Work that waits for the engine; `pipeline.generation.generation.Generation` is one."""

    def submit(self, count: int) -> None:
        """Submit its next `count` sequences to the engine; called until it has submitted all."""

    def fail(self, error: ApiError) -> None:
        """End it with `error`: it will not be submitted."""


class Places(Protocol):
    """Giver of places: `pipeline.admission.admission.Admission`."""

    def enter(self, ticket: Ticket) -> None:
        """See `Ticket.enter`."""

    def sequence_ended(self, ticket: Ticket) -> None:
        """See `Ticket.sequence_ended`."""

    def sequence_began(self, ticket: Ticket) -> None:
        """See `Ticket.sequence_began`."""

    def leave(self, ticket: Ticket, output_tokens: int, first_token_at: float | None, *, done: bool) -> None:
        """See `Ticket.leave`."""


class Ticket:
    """One request's place in the admission; `Admission.ticket` makes it.

    Args:
        admission: admission to the engine.
        key: name of its API key.
        prompt_tokens: tokens of all prompts of the request.
        cost_tokens: tokens of the prompts and those expected of the answer, at least 1; constant while it waits.
        max_tokens: most tokens that each sequence may generate.
        sequences: number of them.
        deadline: time by which the request must be answered; None if it has none.
        priority: the lower, the earlier among the requests of its key; constant while it waits.
    """

    __slots__ = (
        "_admission",
        "among",
        "cost_left",
        "cost_tokens",
        "deadline",
        "given_at",
        "job",
        "key",
        "left",
        "max_tokens",
        "priority",
        "prompt_tokens",
        "running",
        "sequences",
        "started_at",
        "unread",
    )

    def __init__(
        self,
        admission: Places,
        key: str,
        prompt_tokens: int,
        cost_tokens: int,
        max_tokens: int,
        sequences: int,
        deadline: Deadline | None,
        priority: int = 0,
    ) -> None:
        self._admission = admission
        self.key = key
        self.prompt_tokens = prompt_tokens
        self.cost_tokens = cost_tokens
        self.max_tokens = max_tokens
        self.sequences = sequences
        self.deadline = deadline
        self.priority = priority
        self.job: Job | None = None
        self.left = sequences
        """Sequences that have had no place in the engine yet."""
        self.cost_left = cost_tokens
        """Cost in tokens of these."""
        self.running = 0
        """Sequences that the engine has."""
        self.unread = 0
        """Those of them whose prompts it has not read."""
        self.among = 0
        """Sequences that the engine had when it got it, with these."""
        self.started_at: float | None = None
        """`time.monotonic()` when the engine got its first sequence; None while all of it waits."""
        self.given_at = 0.0
        """`time.monotonic()` when the engine got the latest of its sequences."""

    def enter(self, job: Job) -> None:
        """Submit `job` now if the engine has room, else when it is its turn, maybe in parts."""
        self.job = job
        self._admission.enter(self)

    def sequence_began(self) -> None:
        """The engine has read the prompt of one of its sequences."""
        self._admission.sequence_began(self)

    def sequence_ended(self) -> None:
        """The engine has one of its sequences less."""
        self._admission.sequence_ended(self)

    def leave(self, output_tokens: int, first_token_at: float | None = None, *, done: bool) -> None:
        """End the request, in the queue or in the engine.

        Args:
            output_tokens: tokens that the request has generated.
            first_token_at: `time.monotonic()` of the first of them.
            done: whether the request was answered in full.
        """
        self._admission.leave(self, output_tokens, first_token_at, done=done)
