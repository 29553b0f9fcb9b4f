"""Validation of a batch's input file, all of it before the first request is sent."""

from __future__ import annotations

import time
from typing import Any

from openai_bls.api.batches import lines
from openai_bls.api.batches.folder import Folder
from openai_bls.api.batches.lines import LineError
from openai_bls.api.batches.records import BatchRecord

MAX_ERRORS = 100
"""Number of faults of an input file that are listed."""
_GIVE_WAY_S = 0.002
"""Seconds of work after which other threads have their turn, since decoding JSON holds the interpreter."""


def validate(folder: Folder, batch: BatchRecord, max_bytes: int) -> None:
    """Read the whole input file. Note its requests or its faults in `batch`, then `in_progress` or `failed`.

    Args:
        folder: folder that has the file.
        batch: record of the batch.
        max_bytes: most bytes of a request's body.
    """
    source = folder.data(batch.input_file_id)
    if not source.exists():
        fail(batch, missing_input(batch))
        return
    if lines.count(source) > lines.MAX_FILE_LINES:
        what = f"The file of a batch has {lines.MAX_FILE_LINES} lines at most, empty ones included."
        fail(batch, fault("too_many_requests", what))
        return
    seen: set[str] = set()
    errors: list[dict[str, Any]] = []
    models: set[str | None] = set()
    gives_way_at = time.monotonic() + _GIVE_WAY_S
    for number, text in lines.texts(source, max_bytes):
        if time.monotonic() >= gives_way_at:
            time.sleep(0)
            gives_way_at = time.monotonic() + _GIVE_WAY_S
        try:
            line = lines.parse(text, batch.endpoint)
            if line.custom_id in seen:
                raise LineError("duplicate_custom_id", "Another line has the same 'custom_id'.", "custom_id")
            seen.add(line.custom_id)
            models.add(line.model)
        except LineError as error:
            errors.append(fault(error.code, error.message, error.param, number))
        if len(seen) > lines.MAX_LINES:
            errors.append(fault("too_many_requests", f"A batch has {lines.MAX_LINES} requests at most."))
            break
        if len(errors) >= MAX_ERRORS:
            break
    if not seen and not errors:
        errors.append(fault("empty_file", "The file has no requests."))
    batch.total = len(seen)
    batch.model = models.pop() if len(models) == 1 else None
    if errors:
        fail(batch, *errors)
    else:
        batch.status, batch.in_progress_at = "in_progress", int(time.time())


def fail(batch: BatchRecord, *errors: dict[str, Any]) -> None:
    """Note in a record that the batch has failed as a whole."""
    batch.errors = list(errors)
    batch.status, batch.failed_at = "failed", int(time.time())


def missing_input(batch: BatchRecord) -> dict[str, Any]:
    """The fault of a batch whose input file is gone."""
    return fault("invalid_input_file", f"The file {batch.input_file_id} is no longer there.")


def fault(code: str, message: str, param: str | None = None, line: int | None = None) -> dict[str, Any]:
    """An entry of a batch's `errors`."""
    return {"code": code, "message": message, "param": param, "line": line}
