"""Handlers of /v1/files."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, get_args

from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from openai_bls.api.batches.folder import Folder
from openai_bls.api.batches.records import KEPT_S, FileRecord
from openai_bls.api.batches.schema import (
    ExpiresAfter,
    FilesQuery,
    Purpose,
)
from openai_bls.api.common.bodies import fault_at
from openai_bls.api.common.faults import converted
from openai_bls.api.common.queries import page, parse_query
from openai_bls.api.http.handlers import Api, JsonResponse
from openai_bls.core.errors import (
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    TooLargeError,
)
from openai_bls.pipeline.lifecycle.context import RequestContext

MAX_FILES_FACTOR = 50
"""Bytes of all files together, as a multiple of `max_file_bytes`."""
MAX_KEPT_FILES = 100_000
"""Files of all keys together."""
MAX_UPLOADS = 8
"""Files that are received at a time, each of which takes up to `max_file_bytes` of the folder for temporary files."""
IMAGE_PURPOSES = ("vision", "user_data")
"""Purposes of files that may be images."""
# Bytes of a form around its file.
_FORM_BYTES = 64 * 1024


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
        self._uploads = 0

    async def upload(self, request: Request, context: RequestContext) -> Response:
        """POST /v1/files."""
        if self._uploads >= MAX_UPLOADS:
            raise OverloadedError(f"{MAX_UPLOADS} files are being uploaded, the most at a time; try again later.")
        self._uploads += 1
        try:
            return await self._upload(request, context)
        finally:
            self._uploads -= 1

    async def _upload(self, request: Request, context: RequestContext) -> Response:
        folder = self._folder
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
            record = await asyncio.to_thread(folder.add_file, file.file, name, purpose, expires_s, context.key)
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
            # The library bounds the headers of a part: 8, of 4 KiB each.
            return await MultiPartParser(request.headers, stream(), max_files=1, max_fields=16).parse()
        except (MultiPartException, KeyError, ValueError) as error:
            message = error.message if isinstance(error, MultiPartException) else "it has no boundary"
            raise InvalidRequestError(f"The body is no form: {message}.") from None

    async def list_files(self, request: Request, context: RequestContext) -> Response:
        """GET /v1/files."""
        query = parse_query(request.query_params, FilesQuery)
        found = [
            record
            for record in await asyncio.to_thread(self._folder.files)
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
            return await asyncio.to_thread(OpenFileResponse, self._folder.data(record.id))
        except FileNotFoundError:
            raise _no_such_file(record.id) from None

    async def delete(self, request: Request, context: RequestContext) -> Response:
        """DELETE /v1/files/{file_id}."""
        record = await self._file(request, context)
        for batch in await asyncio.to_thread(self._folder.unended):
            if batch.input_file_id == record.id:
                raise InvalidRequestError(f"The file is the input of {batch.id}, which has not ended: cancel that.")
        await asyncio.to_thread(self._folder.delete_file, record.id)
        return JsonResponse({"id": record.id, "object": "file", "deleted": True})

    async def _file(self, request: Request, context: RequestContext) -> FileRecord:
        file_id = request.path_params["file_id"]
        found = await asyncio.to_thread(self._folder.file, file_id)
        if found is None or found.owner != context.key:
            raise _no_such_file(file_id)
        return found


class OpenFileResponse(FileResponse):
    """Content of a file that is held open: it may be deleted before its end.

    Raises:
        FileNotFoundError: it has been already.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        number = self._file.fileno()
        super().__init__(f"/proc/self/fd/{number}", media_type="application/octet-stream", stat_result=os.fstat(number))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the content, and close the file."""
        with self._file:
            await super().__call__(scope, receive, send)


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
