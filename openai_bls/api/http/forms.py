"""Forms (multipart/form-data): files and fields of a request body."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import msgspec
import msgspec.inspect as mi
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from openai_bls.api.common.bodies import fault, json_object
from openai_bls.api.common.encoding import encode
from openai_bls.api.common.fields import IgnoredFields, UnknownFields, converted_fields
from openai_bls.api.common.files import file_of_json
from openai_bls.api.common.large_bodies import is_large, parsed
from openai_bls.api.http.disconnect import unless_disconnected
from openai_bls.api.http.handlers import Api
from openai_bls.core.errors import InvalidRequestError
from openai_bls.pipeline.lifecycle.context import RequestContext

StructT = TypeVar("StructT", bound=msgspec.Struct)

MAX_BOUNDARIES = 256
"""Boundaries in a form, those included that begin no part: each costs the parser as much as a part. Clients choose one
that their files do not have."""
MAX_PADDING_BYTES = 1024
"""White space behind a boundary, which the parser reads byte by byte."""
MAX_TYPE_BYTES = 1024
"""Bytes of the header that names the boundary."""
_MAX_FIELDS = 64
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[([A-Za-z0-9_]*)\])?")


class _InMemory(MultiPartParser):
    """Parser that writes no temporary files: the body is in memory already, and counted."""

    spool_max_size = 1 << 40


async def read_form(
    headers: Headers, stream: AsyncGenerator[bytes, None], max_fields: int, *, in_memory: bool = False
) -> FormData:
    """The form in a body, with at most one file; it is to be closed.

    Args:
        headers: headers of the request.
        stream: body.
        max_fields: most fields besides the file.
        in_memory: keep the file in memory; else a large one is on disk.

    Raises:
        InvalidRequestError: it is no form.
    """
    content_type = headers.get("content-type", "")
    if not content_type.startswith("multipart/form-data"):
        raise InvalidRequestError("A file is sent as multipart/form-data.")
    parser = _InMemory if in_memory else MultiPartParser
    try:
        # The library bounds the headers of a part: 8, of 4 KiB each.
        return await parser(headers, _bounded(content_type, stream), max_files=1, max_fields=max_fields).parse()
    except (MultiPartException, KeyError, ValueError) as error:
        message = error.message if isinstance(error, MultiPartException) else "it has no boundary"
        raise InvalidRequestError(f"The body is no form: {message}.") from None


async def form_body(api: Api, request: Request, context: RequestContext, schema: type[StructT]) -> StructT:
    """The form of a request, with its file, as a `schema`, as the guard leaves it. The guard sees it as JSON.

    Raises:
        TooLargeError: it is too large.
        OverloadedError: there is no room for it.
        InvalidRequestError: it is no form, or a field is bad; `param` names it.
        ApiError: the guard refuses the request, or has failed.
        ClientDisconnect: the client has gone.
    """
    body = await api.received(request, context)
    unknown = api.service.settings.unknown_fields
    # In a thread, however small: the parser's coroutine gets an event loop of its own.
    found, context.ignored = await parsed(
        lambda: _struct(request.headers, body, schema, unknown), large=True, key=context.key
    )
    if api.service.guards is None or not context.has_guards:
        return found
    text = await parsed(lambda: encode(found), large=is_large(body), key=context.key)
    guarded: bytes = await unless_disconnected(request, api.service.guarded_body(context, text))
    return await parsed(
        lambda: struct_of_json(json_object(guarded), schema, unknown)[0], large=is_large(guarded), key=context.key
    )


def struct_of_json(
    body: dict[str, Any], schema: type[StructT], unknown: UnknownFields
) -> tuple[StructT, tuple[str, ...]]:
    """A form that came as JSON, with its file in base64, and the names of its fields without effect.

    Args:
        body: decoded body.
        schema: struct of the form.
        unknown: treatment of unknown fields.

    Raises:
        InvalidRequestError: a field is bad; `param` names it.
    """
    ignored = IgnoredFields(unknown)
    if isinstance(file := body.get("file"), str):
        body = {**body, "file": file_of_json(file, "file")}
    return converted_fields(body, schema, fault, ignored), ignored.names


def _struct(
    headers: Headers, body: bytes, schema: type[StructT], unknown: UnknownFields
) -> tuple[StructT, tuple[str, ...]]:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    form = asyncio.run(read_form(headers, stream(), _MAX_FIELDS, in_memory=True))
    ignored = IgnoredFields(unknown)
    fields = _fields(form, _arrays(schema))
    return converted_fields(fields, schema, fault, ignored, strict=False), ignored.names


def _fields(form: FormData, arrays: frozenset[str]) -> dict[str, Any]:
    """The form as the object that JSON would have: `name[]` are items of an array, `name[key]` values of an object."""
    found: dict[str, Any] = {}
    for name, given in form.multi_items():
        value: str | bytes = given.file.read() if isinstance(given, UploadFile) else given
        match = _NAME.fullmatch(name)
        field, key = (name, None) if match is None else (match[1], match[3])
        if key is None and field in arrays:
            key = ""
        if key is None:
            if field in found:
                raise InvalidRequestError(f"'{name[:60]}' is given twice.", param=name)
            found[field] = value
            continue
        whole = found.setdefault(field, {} if key else [])
        if isinstance(whole, list) and not key:
            whole.append(value)
        elif isinstance(whole, dict) and key and key not in whole:
            whole[key] = value
        else:
            raise InvalidRequestError(f"'{name[:60]}' does not go with the other fields of its name.", param=name)
    return found


@functools.cache
def _arrays(schema: Any) -> frozenset[str]:
    """Fields of a struct that are arrays."""
    info = mi.type_info(schema)
    assert isinstance(info, mi.StructType)
    return frozenset(field.encode_name for field in info.fields if _is_array(field.type))


def _is_array(kind: mi.Type) -> bool:
    if isinstance(kind, mi.Metadata):
        return _is_array(kind.type)
    members = kind.types if isinstance(kind, mi.UnionType) else ()
    return isinstance(kind, mi.ListType) or any(_is_array(member) for member in members)


async def _bounded(content_type: str, stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The pieces of a form's body as they are, until the form has more pieces than any client sends."""
    if len(content_type) > MAX_TYPE_BYTES:
        raise InvalidRequestError(f"The body is no form: its content type has more than {MAX_TYPE_BYTES} bytes.")
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    boundaries = _Boundaries(b"\r\n--" + boundary) if boundary else None
    async for piece in stream:
        if boundaries is not None:
            boundaries.check(piece)
        yield piece


class _Boundaries:
    """Count of the boundaries in a body.

    Args:
        mark: bytes of a boundary.
    """

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._count = 0
        self._rest = b""
        """End of the last piece: less than a boundary, which may go on in the next one."""
        self._padding: int | None = None
        """White space behind a boundary with which the last piece ends; None if it ends otherwise."""

    def check(self, piece: bytes) -> None:
        """Look at the next piece of the body.

        Raises:
            InvalidRequestError: there are too many boundaries, or one has too much white space behind it.
        """
        if self._padding is not None:
            self._pad(piece[: MAX_PADDING_BYTES + 1], self._padding)
        data, size = self._rest + piece, len(self._mark)
        at = data.find(self._mark)
        while at >= 0:
            self._count += 1
            if self._count > MAX_BOUNDARIES:
                raise InvalidRequestError(f"The body is no form: it has more than {MAX_BOUNDARIES} boundaries.")
            at += size
            self._pad(data[at : at + MAX_PADDING_BYTES + 1], 0)
            at = data.find(self._mark, at)
        self._rest = data[len(data) - min(len(data), size - 1) :]

    def _pad(self, behind: bytes, padding: int) -> None:
        """Count white space at the beginning of what is behind a boundary."""
        white = len(behind) - len(behind.lstrip(b" \t"))
        if padding + white > MAX_PADDING_BYTES:
            raise InvalidRequestError(
                f"The body is no form: a boundary has more than {MAX_PADDING_BYTES} bytes of white space behind it."
            )
        self._padding = padding + white if white == len(behind) else None
