"""Bodies, queries and answers of /v1/files and /v1/batches."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from openai_bls.api.batches.lines import Url
from openai_bls.api.batches.records import KEPT_S, Status
from openai_bls.api.common.bodies import Metadata

Purpose = Literal["batch", "vision", "user_data"]
"""Purposes of uploaded files."""

MAX_FILES = 10_000
"""Files of one page."""

_Seconds = Annotated[int, Meta(ge=3600, le=KEPT_S)]


class ExpiresAfter(msgspec.Struct, forbid_unknown_fields=True):
    """Time after which a file is deleted."""

    anchor: Literal["created_at"]
    seconds: _Seconds


class UploadForm(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Form of /v1/files, for the description of the API: the handler reads its fields as they come."""

    file: bytes
    """Lines of JSON, one request each, or an image; up to `max_file_bytes`."""
    purpose: Purpose
    """`batch` for the requests of a batch; `vision` and `user_data` are the same: images, which requests name by the
    file's id."""
    anchor: Literal["created_at"] | None = msgspec.field(default=None, name="expires_after[anchor]")
    """Moment from which `expires_after[seconds]` counts; given together with it."""
    seconds: _Seconds | None = msgspec.field(default=None, name="expires_after[seconds]")
    """Seconds until the file is deleted; 30 days unless given."""


class BatchBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/batches."""

    input_file_id: str
    """An uploaded file."""
    endpoint: Url
    """Endpoint of all requests in the file."""
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    """Kept with the batch."""
    output_expires_after: ExpiresAfter | None = None
    """Expiry of the files that the batch writes; 30 days unless given."""


class FilesQuery(msgspec.Struct):
    """Query of GET /v1/files."""

    purpose: str | None = None
    """Purpose of the files to list."""
    limit: Annotated[int, Meta(ge=1, le=MAX_FILES)] = MAX_FILES
    """Files of the page."""
    order: Literal["asc", "desc"] = "desc"
    """`desc` is the newest first."""
    after: str | None = None
    """Id of the file after which the page begins."""


class BatchesQuery(msgspec.Struct):
    """Query of GET /v1/batches."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    """Batches of the page."""
    after: str | None = None
    """Id of the batch after which the page begins."""


class File(msgspec.Struct):
    """A file."""

    id: str
    bytes: int
    created_at: int
    """Unix seconds."""
    filename: str
    purpose: str
    object: Literal["file"]
    expires_at: int | None
    status: Literal["processed"]
    status_details: None


class Deleted(msgspec.Struct):
    """Answer to the deletion of a file."""

    id: str
    object: Literal["file"]
    deleted: bool


class FileList(msgspec.Struct):
    """A page of files."""

    object: Literal["list"]
    data: list[File]
    first_id: str
    last_id: str
    has_more: bool


class BatchErrors(msgspec.Struct):
    """Faults of a batch as a whole."""

    object: Literal["list"]
    data: list[dict[str, Any]]


class RequestCounts(msgspec.Struct):
    """Requests of a batch."""

    total: int
    completed: int
    failed: int


class BatchUsage(msgspec.Struct):
    """Token counts of a batch."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class Batch(msgspec.Struct):
    """A batch; times are Unix seconds."""

    id: str
    object: Literal["batch"]
    endpoint: str
    input_file_id: str
    completion_window: str
    status: Status
    metadata: dict[str, str] | None
    model: str | None
    created_at: int
    expires_at: int
    output_file_id: str | None
    error_file_id: str | None
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    errors: BatchErrors | None
    request_counts: RequestCounts
    usage: BatchUsage


class BatchList(msgspec.Struct):
    """A page of batches."""

    object: Literal["list"]
    data: list[Batch]
    first_id: str
    last_id: str
    has_more: bool
