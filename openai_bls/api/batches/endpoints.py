"""/v1/files and /v1/batches: OpenAI's files and Batch API, off unless the setting `batches_dir` names a folder."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from openai_bls.api.batches.folder import ENDED, KEPT_S, BatchRecord, FileRecord, Folder
from openai_bls.api.batches.runner import Runner
from openai_bls.api.batches.schema import (
    Batch,
    BatchBody,
    BatchesQuery,
    BatchList,
    Deleted,
    ExpiresAfter,
    File,
    FileList,
    FilesQuery,
    UploadForm,
)
from openai_bls.api.common.bodies import convert, fault_at, json_object
from openai_bls.api.common.encoding import new_id
from openai_bls.api.common.faults import converted
from openai_bls.api.common.queries import page, parse_query
from openai_bls.api.endpoint import Endpoint
from openai_bls.api.http.handlers import Api, Handler, JsonResponse
from openai_bls.api.operation import Operation
from openai_bls.core.errors import (
    ApiError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    StorageFullError,
    TooLargeError,
)
from openai_bls.pipeline.lifecycle.context import RequestContext

WINDOW_S = 24 * 3600
"""Seconds that a batch has: OpenAI's one completion window."""
MAX_FILES_FACTOR = 50
"""Bytes of all files together, as a multiple of `max_file_bytes`."""
MAX_KEPT_FILES = 100_000
"""Files of all keys together."""
MAX_UPLOADS = 8
"""Files that are received at a time, each of which takes up to `max_file_bytes` of the folder for temporary files."""
MAX_UNENDED_BATCHES = 100
"""Batches of one key that have not ended."""
# Bytes of a form around its file.
_FORM_BYTES = 64 * 1024


class BatchHandlers:
    """Handlers of one application, which share a folder and a runner."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._settings = api.service.settings
        self._folder = Folder(Path(self._settings.batches_dir)) if self._settings.batches_dir else None
        self._runner = Runner(api, self._folder) if self._folder is not None else None
        self._uploads = 0

    async def run(self) -> None:
        """Work on batches, if there are any to be."""
        if self._runner is not None:
            await self._runner.run()

    @property
    def folder(self) -> Folder:
        """The folder of files and batches.

        Raises:
            InvalidRequestError: there is none.
        """
        if self._folder is None:
            raise InvalidRequestError(
                "Files and batches are off here: the setting 'batches_dir' of openai_bls names a folder for them."
            )
        return self._folder

    # Files

    async def upload(self, request: Request, context: RequestContext) -> Response:
        """POST /v1/files."""
        if self._uploads >= MAX_UPLOADS:
            raise OverloadedError(f"{MAX_UPLOADS} files are being uploaded, the most at a time; try again later.")
        self._uploads += 1
        try:
            return await self._upload(request, context, self.folder)
        finally:
            self._uploads -= 1

    async def _upload(self, request: Request, context: RequestContext, folder: Folder) -> Response:
        form = await self._form(request)
        try:
            fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
            file = form.get("file")
            if file is None or isinstance(file, str):
                raise InvalidRequestError("Missing required parameter: 'file'", param="file")
            if fields.get("purpose") != "batch":
                raise InvalidRequestError(
                    "'purpose' must be 'batch': files are for batches only here.", param="purpose"
                )
            expires_s = _expires_after(fields)
            limit = self._settings.max_file_bytes
            if (file.size or 0) > limit:
                raise InvalidRequestError(f"The file is larger than {limit} bytes (max_file_bytes).", param="file")
            kept = await asyncio.to_thread(folder.files)
            size = sum(record.bytes for record in kept) + (file.size or 0)
            if size > MAX_FILES_FACTOR * limit or len(kept) >= MAX_KEPT_FILES:
                raise InvalidRequestError("There is no room for more files here: delete some.", param="file")
            quota = self._api.service.api_keys.limits(context.key).max_stored_bytes
            own = sum(record.bytes for record in kept if record.owner == context.key)
            if quota is not None and own + (file.size or 0) > quota:
                raise InvalidRequestError(
                    f"The files of this API key would have {own + (file.size or 0)} bytes; it may have {quota} "
                    "(max_stored_bytes): delete some.",
                    param="file",
                    code="storage_quota_exceeded",
                )
            name = Path(file.filename or "file").name[:255]
            record = await asyncio.to_thread(folder.add_file, file.file, name, "batch", expires_s, context.key)
        finally:
            await form.close()
        return JsonResponse(record.shown())

    async def _form(self, request: Request) -> Any:
        """The form in the body, whose file is on disk; it is to be closed."""
        limit = self._settings.max_file_bytes + _FORM_BYTES
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            raise InvalidRequestError("A file is sent as multipart/form-data.")

        async def stream() -> AsyncGenerator[bytes, None]:
            size = 0
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise TooLargeError(self._settings.max_file_bytes, "max_file_bytes")
                yield chunk

        try:
            if int(request.headers.get("content-length", "0")) > limit:
                raise TooLargeError(self._settings.max_file_bytes, "max_file_bytes")
            return await MultiPartParser(request.headers, stream(), max_files=1, max_fields=16).parse()
        except (MultiPartException, KeyError, ValueError) as error:
            message = error.message if isinstance(error, MultiPartException) else "it has no boundary"
            raise InvalidRequestError(f"The body is no form: {message}.") from None

    async def list_files(self, request: Request, context: RequestContext) -> Response:
        """GET /v1/files."""
        query = parse_query(request.query_params, FilesQuery)
        found = [
            record
            for record in await asyncio.to_thread(self.folder.files)
            if record.owner == context.key and query.purpose in (None, record.purpose)
        ]
        newest_first = query.order == "desc"
        return JsonResponse(
            page(found, FileRecord.shown, newest_first=newest_first, limit=query.limit, after=query.after)
        )

    async def file(self, request: Request, context: RequestContext) -> Response:
        """GET /v1/files/{file_id}."""
        return JsonResponse((await self._file(request, context)).shown())

    async def content(self, request: Request, context: RequestContext) -> Response:
        """GET /v1/files/{file_id}/content."""
        record = await self._file(request, context)
        try:
            return await asyncio.to_thread(_OpenFileResponse, self.folder.data(record.id))
        except FileNotFoundError:
            raise _no_such_file(record.id) from None

    async def delete(self, request: Request, context: RequestContext) -> Response:
        """DELETE /v1/files/{file_id}."""
        record = await self._file(request, context)
        for batch in await asyncio.to_thread(self.folder.unended):
            if batch.input_file_id == record.id:
                raise InvalidRequestError(f"The file is the input of {batch.id}, which has not ended: cancel that.")
        await asyncio.to_thread(self.folder.delete_file, record.id)
        return JsonResponse({"id": record.id, "object": "file", "deleted": True})

    async def _file(self, request: Request, context: RequestContext) -> FileRecord:
        file_id = request.path_params["file_id"]
        found = await asyncio.to_thread(self.folder.file, file_id)
        if found is None or found.owner != context.key:
            raise _no_such_file(file_id)
        return found

    # Batches

    async def create(self, request: Request, context: RequestContext) -> Response:
        """POST /v1/batches."""
        folder = self.folder
        body = convert(await self._api.parsed(request, context, json_object), BatchBody)
        owner, now = context.key, int(time.time())
        source = await asyncio.to_thread(folder.file, body.input_file_id)
        if source is None or source.owner != owner or source.purpose != "batch":
            raise InvalidRequestError(
                f"There is no file {body.input_file_id[:60]!r} that was uploaded for a batch.", param="input_file_id"
            )
        unended = await asyncio.to_thread(folder.unended)
        if sum(batch.owner == owner for batch in unended) >= MAX_UNENDED_BATCHES:
            raise InvalidRequestError(
                f"There are {MAX_UNENDED_BATCHES} batches that have not ended, the most that an API key may have.",
                code="batch_limit_exceeded",
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
        await asyncio.to_thread(folder.write_batch, batch)
        assert self._runner is not None
        self._runner.see(batch)
        return JsonResponse(batch.shown())

    async def list_batches(self, request: Request, context: RequestContext) -> Response:
        """GET /v1/batches."""
        query = parse_query(request.query_params, BatchesQuery)
        found = [batch for batch in await asyncio.to_thread(self.folder.batches) if batch.owner == context.key]
        return JsonResponse(page(found, BatchRecord.shown, limit=query.limit, after=query.after))

    async def batch(self, request: Request, context: RequestContext) -> Response:
        """GET /v1/batches/{batch_id}."""
        return JsonResponse((await self._batch(request, context)).shown())

    async def cancel(self, request: Request, context: RequestContext) -> Response:
        """POST /v1/batches/{batch_id}/cancel."""
        batch = await self._batch(request, context)
        if batch.status in ENDED:
            raise InvalidRequestError(f"The batch has ended: it is {batch.status}.")
        await asyncio.to_thread(self.folder.cancel, batch.id)
        batch = await self._batch(request, context)
        shown = batch.shown()
        assert self._runner is not None
        self._runner.see(batch)
        return JsonResponse(shown)

    async def _batch(self, request: Request, context: RequestContext) -> BatchRecord:
        batch_id = request.path_params["batch_id"]
        found = await asyncio.to_thread(self.folder.batch, batch_id)
        if found is None or found.owner != context.key:
            raise NotFoundError(f"No such batch: '{batch_id[:60]}'.")
        return found


class _OpenFileResponse(FileResponse):
    """Content of a file that is held open: it may be deleted before its end.

    Raises:
        FileNotFoundError: it has been already.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        number = self._file.fileno()
        super().__init__(f"/proc/self/fd/{number}", media_type="application/octet-stream", stat_result=os.fstat(number))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)


def _no_such_file(file_id: str) -> NotFoundError:
    return NotFoundError(f"No such file: '{file_id[:60]}'.")


def _expires_after(fields: dict[str, str]) -> int:
    """Seconds that a file is kept, by the fields of its form."""
    given: dict[str, str] = {}
    for name, value in fields.items():
        match = re.fullmatch(r"expires_after\[(\w+)\]", name)
        if match is not None:
            given[match[1]] = value
        elif name != "purpose":
            raise InvalidRequestError(f"Unknown parameter: '{name[:60]}'.", param=name, code="unknown_parameter")
    return converted(given, ExpiresAfter, fault_at("expires_after"), strict=False).seconds if given else KEPT_S


def _endpoint(
    name: str, path: str, handler: Callable[[BatchHandlers, Request, RequestContext], Awaitable[Response]], **more: Any
) -> Endpoint:
    def make(api: Api) -> Handler:
        async def handle(request: Request, context: RequestContext) -> Response:
            handlers = api.shared(BatchHandlers)
            # The same sentence for all of them, whatever else is wrong.
            assert handlers.folder is not None
            return await handler(handlers, request, context)

        return handle

    return Endpoint(name=name, paths=(path,), handler=make, has_guards=False, **more)


async def _run(api: Api) -> None:
    await api.shared(BatchHandlers).run()


_FILE, _BATCH = "/v1/files/{file_id}", "/v1/batches/{batch_id}"

_ON_DISK = frozenset[type[ApiError]]({StorageFullError})

ENDPOINTS = (
    _endpoint(
        "files",
        "/v1/files",
        BatchHandlers.upload,
        uploads=True,
        operation=Operation(
            summary="Upload a file of requests",
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
        BatchHandlers.list_files,
        method="GET",
        operation=Operation(summary="The files of a key", answer=FileList, query=FilesQuery),
    ),
    _endpoint(
        "files.retrieve",
        _FILE,
        BatchHandlers.file,
        method="GET",
        operation=Operation(summary="A file, without its content", answer=File),
    ),
    _endpoint(
        "files.content",
        f"{_FILE}/content",
        BatchHandlers.content,
        method="GET",
        operation=Operation(summary="The content of a file", answer=bytes),
    ),
    _endpoint(
        "files.delete",
        _FILE,
        BatchHandlers.delete,
        method="DELETE",
        operation=Operation(summary="Delete a file", answer=Deleted),
    ),
    _endpoint(
        "batches",
        "/v1/batches",
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
        BatchHandlers.list_batches,
        method="GET",
        operation=Operation(summary="The batches of a key, the newest first", answer=BatchList, query=BatchesQuery),
    ),
    _endpoint(
        "batches.retrieve",
        _BATCH,
        BatchHandlers.batch,
        method="GET",
        operation=Operation(summary="A batch", answer=Batch),
    ),
    _endpoint(
        "batches.cancel",
        f"{_BATCH}/cancel",
        BatchHandlers.cancel,
        operation=Operation(summary="Cancel a batch", answer=Batch, errors=_ON_DISK),
    ),
)
