"""Life of an admitted request: it is in progress, holds a part of its key's budget, and is recorded at its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

import msgspec

from openai_bls.core.errors import ApiError
from openai_bls.core.request_record import Outcome, Progress, RequestRecord
from openai_bls.pipeline.admission.key_budgets import Lease
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.media.budget import MediaLease


def _uncounted(change: int) -> None:
    """No count of requests in progress."""


def _unrecorded(record: RequestRecord) -> None:
    """No receiver of records but the request's own."""


class Work(Protocol):
    """Work of a request for which a model has been asked."""

    def fail(self, error: ApiError) -> None:
        """End it with `error`; harmless after its end."""


class Running(Protocol):
    """Request in progress, or a part of one."""

    @property
    def key(self) -> str:
        """Name of its API key."""

    @property
    def work(self) -> Work | None:
        """Work that can be ended; None if there is none yet."""


class Held(Protocol):
    """What a request holds until its end."""

    def end(self) -> None:
        """Give it back."""


class Life:
    """One request in progress, from its admission to its end. Belongs to the event loop's thread.

    A context manager: an exception that leaves the block gives back what the request holds, unless it has ended. The
    end is recorded if a model has taken the request.

    Args:
        context: context of the request.
        lease: part of the key's budget that the request holds.
        count: called with the change of the number of requests in progress.
        on_end: called with the record.
        began_at: `time.monotonic()` of its begin; None is `context.work_began_at()`.
        lives: set that holds it while it is in progress; None is none.
    """

    __slots__ = (
        "_context",
        "_count",
        "_ended",
        "_lives",
        "_model",
        "_on_end",
        "_part",
        "answer",
        "began_at",
        "images",
        "lease",
        "work",
    )

    def __init__(
        self,
        context: RequestContext,
        lease: Lease,
        count: Callable[[int], None] = _uncounted,
        on_end: Callable[[RequestRecord], None] = _unrecorded,
        began_at: float | None = None,
        lives: set[Running] | None = None,
    ) -> None:
        self._context = context
        self._lives = lives
        self._count = count
        self._on_end = on_end
        self._ended = False
        self._model = ""
        self._part: RequestContext | None = None
        self.lease = lease
        self.images: MediaLease | None = None
        """Part of the images' budget that the request holds; None if it has no images."""
        self.answer: Held | None = None
        """Count of its answer, if that is collected whole."""
        self.work: Work | None = None
        """Generation of the request, once it is prepared."""
        self.began_at = context.work_began_at() if began_at is None else began_at
        if lives is not None:
            lives.add(self)
        count(1)

    @property
    def key(self) -> str:
        """Name of the request's API key."""
        return self._context.key

    def __enter__(self) -> Life:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and not self._ended:
            self._give_back(0)

    def taken(self, model: str) -> None:
        """A model has taken the request: its end will be recorded.

        Args:
            model: name in the metrics.
        """
        self._model = model
        self._part = self._context.opened()

    def ended(self, outcome: Outcome, progress: Progress) -> None:
        """End a request that a model has taken: give back what it holds, and record it."""
        self._give_back(progress.usage.total_tokens)
        context, part = self._context, self._part
        assert part is not None
        record = RequestRecord(
            **msgspec.structs.asdict(progress),
            endpoint=context.endpoint,
            model=self._model,
            outcome=outcome,
            began_at=self.began_at,
            ended_at=time.monotonic(),
            key=context.key,
        )
        self._on_end(record)
        part.recorded(record)
        if context.guarded is not None:
            context.guarded.ended(record)

    def _give_back(self, tokens: int) -> None:
        self._ended = True
        if self._lives is not None:
            self._lives.discard(self)
        self.lease.end(tokens)
        if self.images is not None:
            self.images.end()
        if self.answer is not None:
            self.answer.end()
        # Both hold this: a cycle would keep what is large of an answer for long.
        self.answer = self.work = None
        self._count(-1)
