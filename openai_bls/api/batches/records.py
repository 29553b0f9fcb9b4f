"""Records of files and batches, as they lie in the folder."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from openai_bls.api.batches.lines import Tally

KEPT_S = 30 * 24 * 3600
"""Seconds that a file is kept unless its request says otherwise, and a batch after its end."""

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
ENDED = ("failed", "completed", "expired", "cancelled")


class FileRecord(msgspec.Struct, omit_defaults=True):
    """A file."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None
    owner: str = ""
    """Name of the key that may see it."""

    def shown(self) -> dict[str, Any]:
        """OpenAI's `file` object."""
        shown = {name: getattr(self, name) for name in ("id", "bytes", "created_at", "filename", "purpose")}
        return {**shown, "object": "file", "expires_at": self.expires_at, "status": "processed", "status_details": None}


class Closed(msgspec.Struct, frozen=True):
    """State of a batch none of whose requests is in progress. It holds as long as the sizes are those of the files."""

    start: int
    """Offset in the input file in bytes: the lines before it have results, the others have none."""
    output_bytes: int
    errors_bytes: int


class BatchRecord(msgspec.Struct, omit_defaults=True):
    """A batch."""

    id: str
    endpoint: str
    input_file_id: str
    created_at: int
    expires_at: int
    completion_window: str = "24h"
    status: Status = "validating"
    metadata: dict[str, str] | None = None
    output_expires_s: int | None = None
    ran_out: bool = False
    """True if the batch expired before all its requests were answered."""
    owner: str = ""
    model: str | None = None
    total: int = 0
    done: Tally = msgspec.field(default_factory=Tally)
    failed: Tally = msgspec.field(default_factory=Tally)
    errors: list[dict[str, Any]] = []
    closed_at: Closed | None = None
    """State of the files when an instance closed the batch to open another one; None if none has."""
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None

    @property
    def ended_at(self) -> int | None:
        """Unix time of its end; None if it has not ended."""
        return self.completed_at or self.failed_at or self.expired_at or self.cancelled_at

    def shown(self) -> dict[str, Any]:
        """OpenAI's `batch` object."""
        hidden = ("output_expires_s", "owner", "ran_out", "total", "done", "failed", "errors", "closed_at")
        tallies = (self.done, self.failed)
        return {
            "object": "batch",
            **{name: getattr(self, name) for name in self.__struct_fields__ if name not in hidden},
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            "request_counts": {"total": self.total, "completed": self.done.count, "failed": self.failed.count},
            "usage": {
                "input_tokens": sum(tally.input_tokens for tally in tallies),
                "input_tokens_details": {"cached_tokens": sum(tally.cached_tokens for tally in tallies)},
                "output_tokens": sum(tally.output_tokens for tally in tallies),
                "output_tokens_details": {"reasoning_tokens": sum(tally.reasoning_tokens for tally in tallies)},
                "total_tokens": sum(tally.input_tokens + tally.output_tokens for tally in tallies),
            },
        }

    def ends(self, now: float) -> bool:
        """True if no further request of it is to be sent: it is cancelled, its time is over, or all are answered."""
        return self.cancelling_at is not None or self.finalizing_at is not None or now >= self.expires_at


class BatchEntry(NamedTuple):
    """What a list of all batches knows of one."""

    id: str
    owner: str
    created_at: int
    ended_at: int | None = None
    """Unix time of its end; None if it has not ended."""
    bytes: int = 0
    """Bytes of its record, once it has ended."""

    @classmethod
    def of(cls, batch: BatchRecord, size: int = 0) -> BatchEntry:
        """Entry of a batch whose record has `size` bytes."""
        return cls(batch.id, batch.owner, batch.created_at, batch.ended_at, size)
