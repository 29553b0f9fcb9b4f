"""Handlers of /v1/files."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections import Counter
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, get_args

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from openai_bls.api.batches.disk import copied, on_disk, piece
from openai_bls.api.batches.folder import Folder
from openai_bls.api.batches.records import KEPT_S, FileRecord
from openai_bls.api.batches.room import Upload, files_to_delete
from openai_bls.api.batches.schema import (
    ExpiresAfter,
    FilesQuery,
    Purpose,
)
from openai_bls.api.common.bodies import fault_at
from openai_bls.api.common.faults import converted
from openai_bls.api.common.queries import page, parse_query
from openai_bls.api.http.forms import read_form
from openai_bls.api.http.handlers import Api, JsonResponse
from openai_bls.core.errors import (
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    TooLargeError,
)
from openai_bls.core.keys.turns import FairLock
from openai_bls.pipeline.lifecycle.context import RequestContext

logger = logging.getLogger(__name__)

MAX_FILES_FACTOR = 50
"""Bytes of all files together, as a multiple of `max_file_bytes`."""
MAX_KEPT_FILES = 100_000
"""Files of all keys together."""
MAX_UPLOADS = 8
"""Files that are received at a time, each of which takes up to `max_file_bytes` of the folder for temporary files.

Where there are several API keys, one with as many uploads as there is room for more has to wait."""
IMAGE_PURPOSES = ("vision", "user_data")
"""Purposes of files that may be images."""
# Bytes of a form around its file.
_FORM_BYTES = 64 * 1024
_FORM_FIELDS = 16


def shared_folder(api: Api) -> Folder:
    """The folder of files and batches of an application.

    Raises:
        InvalidRequestError: there is none.
    """
    if not api.service.settings.batches_dir:
        raise InvalidRequestError(
            "Files and batches are off here: the setting 'batches_dir' of openai_bls names a folder for them."
        )
    return Folder(Path(api.service.settings.batches_dir))


class FileHandlers:
    """Handlers of one application.

    Raises:
        InvalidRequestError: it has no folder for files.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._settings = api.service.settings
        self._folder = api.shared(shared_folder)
        # By API key.
        self._uploads: Counter[str] = Counter()
        self._making_room = FairLock()
        self._received: list[Upload] = []
        """Files that are being copied in."""

    async def upload(self, request: Request, context: RequestContext) -> Response:
        """POST /v1/files."""
        own, free = self._uploads[context.key], MAX_UPLOADS - self._uploads.total()
        if free <= 0 or (own >= free and self._api.service.api_keys.several):
            raise OverloadedError(
                f"Of the {MAX_UPLOADS} files that may be uploaded at a time there are {MAX_UPLOADS - free}, {own} of "
                "this API key; try again later."
            )
        self._uploads[context.key] += 1
        try:
            return await self._upload(request, context)
        finally:
            self._uploads -= Counter([context.key])

    async def _upload(self, request: Request, context: RequestContext) -> Response:
        form = await self._form(request)
        try:
            fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
            file = form.get("file")
            if file is None or isinstance(file, str):
                raise InvalidRequestError("Missing required parameter: 'file'", param="file")
            purpose = fields.get("purpose", "")
            if purpose not in get_args(Purpose):
                known = ", ".join(map(repr, get_args(Purpose)))
                raise InvalidRequestError(
                    f"'purpose' must be one of {known}: files are requests of batches, or images.", param="purpose"
                )
            expires_s = _expires_after(fields)
            limit = self._settings.max_file_bytes
            if (file.size or 0) > limit:
                raise InvalidRequestError(f"The file is larger than {limit} bytes (max_file_bytes).", param="file")
            upload = Upload(context.key, file.size or 0)
            name = Path(file.filename or "file").name[:255]
            async with self._making_room.turn(context.key):
                await on_disk(context.key, self._make_room, upload)
                self._received.append(upload)
            try:
                add = self._folder.add_file
                record = await copied(context.key, add, file.file, name, purpose, expires_s, context.key)
            finally:
                self._received.remove(upload)
        finally:
            await form.close()
        return JsonResponse(record.shown())

    def _make_room(self, new: Upload) -> None:
        """Delete files of keys that have more than their share, if there is no room for a further one."""
        kept, others = self._folder.files(), list(self._received)
        quota = self._api.service.api_keys.limits(new.key).max_stored_bytes
        size = sum(record.bytes for record in kept if record.owner == new.key)
        size += sum(upload.bytes for upload in (*others, new) if upload.key == new.key)
        if quota is not None and size > quota:
            raise InvalidRequestError(
                f"The files of this API key would have {size} bytes; it may have {quota} (max_stored_bytes): delete "
                "some.",
                param="file",
                code="storage_quota_exceeded",
            )
        inputs = {batch.input_file_id for batch in self._folder.unended()}
        max_bytes = MAX_FILES_FACTOR * self._settings.max_file_bytes
        for file_id in files_to_delete(kept, inputs, others, new, MAX_KEPT_FILES, max_bytes):
            logger.warning("file %s is deleted: its API key has more than its share of the room", file_id)
            self._folder.delete_file(file_id)

    async def _form(self, request: Request) -> Any:
        """The form in the body, whose file is on disk; it is to be closed."""
        limit = self._settings.max_file_bytes + _FORM_BYTES

        async def stream() -> AsyncGenerator[bytes, None]:
            size = 0
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise TooLargeError(self._settings.max_file_bytes, "max_file_bytes")
                yield chunk

        if int(request.headers.get("content-length", "0")) > limit:
            raise TooLargeError(self._settings.max_file_bytes, "max_file_bytes")
        return await read_form(request.headers, stream(), _FORM_FIELDS)

    async def list_files(self, request: Request, context: RequestContext) -> Response:
        """GET /v1/files."""
        query = parse_query(request.query_params, FilesQuery)

        def own() -> list[FileRecord]:
            records = self._folder.files()
            return [one for one in records if one.owner == context.key and query.purpose in (None, one.purpose)]

        found = await on_disk(context.key, own)
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
            return await on_disk(context.key, OpenFileResponse, self._folder.data(record.id), context.key)
        except FileNotFoundError:
            raise _no_such_file(record.id) from None

    async def delete(self, request: Request, context: RequestContext) -> Response:
        """DELETE /v1/files/{file_id}."""
        record = await self._file(request, context)
        for batch in await on_disk(context.key, self._folder.unended):
            if batch.input_file_id == record.id:
                raise InvalidRequestError(f"The file is the input of {batch.id}, which has not ended: cancel that.")
        await on_disk(context.key, self._folder.delete_file, record.id)
        return JsonResponse({"id": record.id, "object": "file", "deleted": True})

    async def _file(self, request: Request, context: RequestContext) -> FileRecord:
        file_id = request.path_params["file_id"]
        found = await on_disk(context.key, self._folder.file, file_id)
        if found is None or found.owner != context.key:
            raise _no_such_file(file_id)
        return found


class OpenFileResponse(FileResponse):
    """Content of a file that is held open: it may be deleted before its end. It is read in turns of an API key, as
    `FileResponse` would read it on threads that all keys share.

    Args:
        path: path of the file.
        key: name of the key.

    Raises:
        FileNotFoundError: it has been deleted already.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._key = key
        self._file = path.open("rb", buffering=0)
        self._piece: Future[bytes] | None = None
        status = os.fstat(self._file.fileno())
        super().__init__(path, media_type="application/octet-stream", stat_result=status)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the content, or the one range of it that is asked for, and close the file."""
        told: list[Message] = []

        async def keep(message: Message) -> None:
            told.append(message)

        try:
            # To HEAD it tells the status and the range, and reads nothing.
            await super().__call__({**scope, "method": "HEAD", "headers": _of_one_range(scope)}, receive, keep)
            status, headers = told[0]["status"], Headers(raw=told[0]["headers"])
            if scope["method"] == "HEAD" or status not in (200, 206):
                for message in told:
                    await send(message)
                return
            found = re.match(r"bytes (\d+)-", headers.get("content-range", ""))
            content = self._pieces(int(found[1]) if found else 0, int(headers["content-length"]))
            await StreamingResponse(content, status, headers)(scope, receive, send)
        finally:
            if self._piece is None:
                self._file.close()
            else:
                # The client may leave while a thread reads.
                self._piece.add_done_callback(lambda _: self._file.close())

    async def _pieces(self, start: int, size: int) -> AsyncGenerator[bytes, None]:
        end = start + size
        while start < end:
            self._piece = piece(self._key, os.pread, self._file.fileno(), min(self.chunk_size, end - start), start)
            read = await asyncio.wrap_future(self._piece)
            if not read:
                raise OSError("the file has been cut")
            start += len(read)
            yield read


def _of_one_range(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Headers of a request, without a `Range` of several: a server may send the whole instead."""
    return [(name, value) for name, value in scope["headers"] if name != b"range" or b"," not in value]


def image_path(folder: Folder, file_id: str, key: str) -> Path | None:
    """Path of an image that the API key `key` has uploaded; None if there is none of that id."""
    found = folder.file(file_id)
    if found is None or found.owner != key or found.purpose not in IMAGE_PURPOSES:
        return None
    return folder.data(file_id)


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
