"""/v1/files and /v1/batches: OpenAI's files and Batch API, off unless the setting `batches_dir` names a folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from openai_bls.api.batches.disk import on_disk
from openai_bls.api.batches.files import FileHandlers, shared_folder
from openai_bls.api.batches.records import ENDED, KEPT_S, BatchRecord
from openai_bls.api.batches.runner import Runner
from openai_bls.api.batches.schema import (
    Batch,
    BatchBody,
    BatchesQuery,
    BatchList,
    Deleted,
    File,
    FileList,
    FilesQuery,
    UploadForm,
)
from openai_bls.api.common.bodies import convert, json_object
from openai_bls.api.common.encoding import new_id
from openai_bls.api.common.queries import page, parse_query
from openai_bls.api.endpoint import Endpoint, Operation
from openai_bls.api.http.handlers import Api, JsonResponse
from openai_bls.core.errors import (
    ApiError,
    InvalidRequestError,
    NotFoundError,
    StorageFullError,
)
from openai_bls.core.keys.shares import Shares
from openai_bls.core.keys.turns import FairLock
from openai_bls.pipeline.lifecycle.context import RequestContext

logger = logging.getLogger(__name__)

T = TypeVar("T")

WINDOW_S = 24 * 3600
"""Seconds that a batch has: OpenAI's one completion window."""
MAX_UNENDED_BATCHES = 100
"""Batches of one key that have not ended."""
MAX_KEPT_BATCHES = 10_000
"""Batches of all keys together, those that have ended included."""
MAX_KEPT_BYTES = 64 << 20
"""Bytes of the records of all ended batches; their results are files."""


class BatchHandlers:
    """Handlers of one application, with its runner.

    Raises:
        InvalidRequestError: it has no folder for batches.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._folder = api.shared(shared_folder)
        self._runner = Runner(api, self._folder)
        self._creating = FairLock()

    async def run(self) -> None:
        """Work on batches, if there are any to be."""
        await self._runner.run()

    async def create(self, request: Request, context: RequestContext) -> Response:
        """POST /v1/batches."""
        folder = self._folder
        body = convert(await self._api.parsed(request, context, json_object), BatchBody)
        owner, now = context.key, int(time.time())
        source = await on_disk(owner, folder.file, body.input_file_id)
        if source is None or source.owner != owner or source.purpose != "batch":
            raise InvalidRequestError(
                f"There is no file {body.input_file_id[:60]!r} that was uploaded for a batch.", param="input_file_id"
            )
        expires = body.output_expires_after
        batch = BatchRecord(
            id=new_id("batch_"),
            endpoint=body.endpoint,
            input_file_id=source.id,
            created_at=now,
            expires_at=now + WINDOW_S,
            metadata=body.metadata,
            output_expires_s=KEPT_S if expires is None else expires.seconds,
            owner=owner,
        )
        # One at a time, or some would be added beyond what a key may have.
        async with self._creating.turn(owner):
            await on_disk(owner, self._add, batch)
        self._runner.see(batch)
        return JsonResponse(batch.shown())

    def _add(self, batch: BatchRecord) -> None:
        """Keep a new batch, and forget ended ones of keys that have more than their share if there is no more room.

        Raises:
            InvalidRequestError: its key has as many that have not ended as it may have.
        """
        shares = Shares(MAX_KEPT_BATCHES, MAX_KEPT_BYTES)
        entries = {entry.id: entry for entry in self._folder.entries()}
        unended = [entry for entry in entries.values() if entry.owner == batch.owner and entry.ended_at is None]
        if len(unended) >= MAX_UNENDED_BATCHES:
            raise InvalidRequestError(
                f"There are {MAX_UNENDED_BATCHES} batches that have not ended, the most that an API key may have.",
                code="batch_limit_exceeded",
            )
        for entry in entries.values():
            shares.add(entry.owner, entry.id, pinned=entry.ended_at is None)
            shares.charge(entry.owner, entry.bytes)
        shares.add(batch.owner, batch.id, pinned=True)
        while (batch_id := shares.excess()) is not None:
            shares.remove(batch_id)
            shares.charge(entries[batch_id].owner, -entries[batch_id].bytes)
            logger.warning("the batch %s is forgotten: its API key has more than its share of the room", batch_id)
            self._folder.forget(batch_id)
        self._folder.write_batch(batch)

    async def list_batches(self, request: Request, context: RequestContext) -> Response:
        """GET /v1/batches."""
        query = parse_query(request.query_params, BatchesQuery)

        def listed() -> dict[str, Any]:
            own = [entry for entry in self._folder.entries() if entry.owner == context.key]
            chosen = page(own, lambda entry: entry.id, limit=query.limit, after=query.after)
            records = [self._folder.batch(batch_id) for batch_id in chosen["data"]]
            return {**chosen, "data": [record.shown() for record in records if record is not None]}

        return JsonResponse(await on_disk(context.key, listed))

    async def batch(self, request: Request, context: RequestContext) -> Response:
        """GET /v1/batches/{batch_id}."""
        return JsonResponse((await self._batch(request, context)).shown())

    async def cancel(self, request: Request, context: RequestContext) -> Response:
        """POST /v1/batches/{batch_id}/cancel."""
        batch = await self._batch(request, context)
        if batch.status in ENDED:
            raise InvalidRequestError(f"The batch has ended: it is {batch.status}.")
        await on_disk(context.key, self._folder.cancel, batch.id)
        batch = await self._batch(request, context)
        self._runner.cancel(batch)
        return JsonResponse(batch.shown())

    async def _batch(self, request: Request, context: RequestContext) -> BatchRecord:
        batch_id = request.path_params["batch_id"]
        found = await on_disk(context.key, self._folder.batch, batch_id)
        if found is None or found.owner != context.key:
            raise NotFoundError(f"No such batch: '{batch_id[:60]}'.")
        return found


def _endpoint(
    name: str,
    path: str,
    handlers: Callable[[Api], T],
    handler: Callable[[T, Request, RequestContext], Awaitable[Response]],
    **more: Any,
) -> Endpoint:
    async def handle(api: Api, request: Request, context: RequestContext) -> Response:
        # Without a folder this is the same error for all of them, whatever else is wrong.
        return await handler(api.shared(handlers), request, context)

    return Endpoint(name=name, paths=(path,), handler=handle, has_guards=False, **more)


async def _run(api: Api) -> None:
    if api.service.settings.batches_dir:
        await api.shared(BatchHandlers).run()


_FILE, _BATCH = "/v1/files/{file_id}", "/v1/batches/{batch_id}"

_ON_DISK = frozenset[type[ApiError]]({StorageFullError})

ENDPOINTS = (
    _endpoint(
        "files",
        "/v1/files",
        FileHandlers,
        FileHandlers.upload,
        uploads=True,
        operation=Operation(
            summary="Upload a file of requests, or an image",
            body=UploadForm,
            body_type="multipart/form-data",
            answer=File,
            errors=_ON_DISK,
            example={"purpose": "batch", "file": "@requests.jsonl"},
        ),
    ),
    _endpoint(
        "files.list",
        "/v1/files",
        FileHandlers,
        FileHandlers.list_files,
        method="GET",
        operation=Operation(summary="The files of a key", answer=FileList, query=FilesQuery),
    ),
    _endpoint(
        "files.retrieve",
        _FILE,
        FileHandlers,
        FileHandlers.file,
        method="GET",
        operation=Operation(summary="A file, without its content", answer=File),
    ),
    _endpoint(
        "files.content",
        f"{_FILE}/content",
        FileHandlers,
        FileHandlers.content,
        method="GET",
        operation=Operation(summary="The content of a file", answer=bytes),
    ),
    _endpoint(
        "files.delete",
        _FILE,
        FileHandlers,
        FileHandlers.delete,
        method="DELETE",
        operation=Operation(summary="Delete a file", answer=Deleted),
    ),
    _endpoint(
        "batches",
        "/v1/batches",
        BatchHandlers,
        BatchHandlers.create,
        background=_run,
        operation=Operation(
            summary="Begin a batch",
            body=BatchBody,
            answer=Batch,
            errors=_ON_DISK,
            example={
                "input_file_id": "file-0123456789abcdef0123456789abcdef",
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
            },
        ),
    ),
    _endpoint(
        "batches.list",
        "/v1/batches",
        BatchHandlers,
        BatchHandlers.list_batches,
        method="GET",
        operation=Operation(summary="The batches of a key, the newest first", answer=BatchList, query=BatchesQuery),
    ),
    _endpoint(
        "batches.retrieve",
        _BATCH,
        BatchHandlers,
        BatchHandlers.batch,
        method="GET",
        operation=Operation(summary="A batch", answer=Batch),
    ),
    _endpoint(
        "batches.cancel",
        f"{_BATCH}/cancel",
        BatchHandlers,
        BatchHandlers.cancel,
        operation=Operation(summary="Cancel a batch", answer=Batch, errors=_ON_DISK),
    ),
)
