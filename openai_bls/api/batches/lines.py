"""Lines of batch files: requests, and the results that are written for them."""

from __future__ import annotations

import codecs
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec

from openai_bls.api.common.encoding import encode, new_id
from openai_bls.api.common.lifted import lifted, put_back

Url = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
"""Endpoint that a batch may be of."""
URLS: tuple[Url, ...] = get_args(Url)
MAX_LINES = 50_000
"""Requests of one batch."""
MAX_FILE_LINES = 2 * MAX_LINES
"""Lines of its file, empty ones included: to skip an empty one takes as long as to read a short one."""
_OVERHEAD_BYTES = 4096
"""Bytes of a line around its body."""
_PIECE_BYTES = 1 << 20
"""Bytes that are read at once to count the lines of a file."""
_MAX_MESSAGE_LENGTH = 600
"""Characters of what is told of a line, which may echo some of it: a batch's record holds a hundred of them."""
_MAX_MODEL_LENGTH = 256
"""Characters of a model's name that a batch's record may hold."""


class LineError(Exception):
    """A line that is no request.

    Args:
        code: machine-readable.
        message: text for the client.
        param: the field at fault, or None.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        if len(message) > _MAX_MESSAGE_LENGTH:
            message = message[: _MAX_MESSAGE_LENGTH - 1] + "…"
        self.message = message
        self.param = param


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request of a batch."""

    custom_id: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    """Id of the request that the client chose, unique in the file."""
    method: str
    url: str
    body: msgspec.Raw
    """JSON text of an object, which the endpoint decodes."""

    @property
    def model(self) -> str | None:
        """Name of the model that the request asks for; None if it names none, or by far too long a name."""
        named = _decode_fields(self.body).model
        try:
            name = _decode_text(named)
        except msgspec.DecodeError:
            return None
        return name if len(name) <= _MAX_MODEL_LENGTH else None


_NULL = msgspec.Raw(b"null")
_SHORT_BYTES = 64
"""Bytes of JSON text that is decoded to see whether it is false; longer text is not."""


class _Fields(msgspec.Struct):
    """Fields of a body that a batch looks at; what they hold is not decoded."""

    model: msgspec.Raw = _NULL
    stream: msgspec.Raw = _NULL
    background: msgspec.Raw = _NULL


_decode = msgspec.json.Decoder(Line).decode
_decode_fields = msgspec.json.Decoder(_Fields).decode
_decode_text = msgspec.json.Decoder(str).decode


def parse(text: bytes, url: str | None = None) -> Line:
    """The request on a line.

    Args:
        text: text of the line.
        url: URL that the line must have; None is any of `URLS`.

    Raises:
        LineError: it is none, or one that cannot be in a batch.
    """
    # Editors on Windows write it at the beginning of a file, and files get joined; JSON has none.
    text = text.removeprefix(codecs.BOM_UTF8)
    light, parts = lifted(text)
    if parts:
        try:
            line = _checked(light, url)
        except LineError:
            # In the words of the line as it came.
            return _checked(text, url)
        whole = put_back(bytes(line.body), parts)
        # Base64 in a `custom_id`, say, is none of an image.
        return _checked(text, url) if whole is None else msgspec.structs.replace(line, body=msgspec.Raw(whole))
    return _checked(text, url)


def _checked(text: bytes, url: str | None) -> Line:
    try:
        # What is not decoded is not looked at otherwise.
        text.decode()
        line = _decode(text)
        fields = _decode_fields(line.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LineError("invalid_json_line", f"This line is not a request: {error}") from None
    if line.method != "POST":
        raise LineError("invalid_method", f"'method' must be POST, not {line.method[:20]!r}.", "method")
    if line.url not in URLS or (url is not None and line.url != url):
        wanted = url or " or ".join(URLS)
        raise LineError("mismatched_endpoint", f"'url' must be {wanted}, not {line.url[:60]!r}.", "url")
    for name in ("stream", "background"):
        value: msgspec.Raw = getattr(fields, name)
        if len(bytes(value)) > _SHORT_BYTES or msgspec.json.decode(value):
            raise LineError("unsupported_parameter", f"'{name}' is not supported in a batch.", f"body.{name}")
    return line


def count(path: Path) -> int:
    """Number of the lines of a file that are ended."""
    found = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            found += piece.count(b"\n")
    return found


def texts(path: Path, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """The numbers, from 1 on, and the texts of the lines that are not empty; one that is too long comes cut.

    Args:
        path: path of the file.
        max_bytes: most bytes of a request's body.
    """
    most = max_bytes + _OVERHEAD_BYTES
    with path.open("rb") as file:
        number = 0
        while text := file.readline(most):
            number += 1
            if text.strip():
                yield number, text
            while len(text) == most and not text.endswith(b"\n"):
                text = file.readline(most)


class Place(msgspec.Struct, frozen=True):
    """Text of a line, and where it stands."""

    text: bytes
    start: int
    """Offset of the line in bytes."""
    end: int
    """Offset of the next line in bytes."""


def read(path: Path, start: int, max_bytes: int, size: int = 1) -> list[Place]:
    """The next lines of a file that are not empty: at least one, unless there is none, and further ones that fit.

    Args:
        path: path of the file.
        start: offset of a line in bytes.
        max_bytes: most bytes of a request's body.
        size: bytes of all lines together, beyond which no further one is returned.
    """
    found: list[Place] = []
    with path.open("rb") as file:
        file.seek(start)
        while text := file.readline(max_bytes + _OVERHEAD_BYTES):
            end = start + len(text)
            size -= len(text)
            if found and size < 0:
                break
            if text.strip():
                found.append(Place(text, start, end))
            start = end
    return found


def result(line: Line, status: int, request_id: str, body: bytes) -> bytes:
    """The result of a request, as a line: `body` is JSON text, in any layout."""
    raw = msgspec.Raw(msgspec.json.format(body, indent=-1))
    response = {"status_code": status, "request_id": request_id, "body": raw}
    found = {"id": new_id("batch_req_"), "custom_id": line.custom_id, "response": response, "error": None}
    return encode(found) + b"\n"


def not_run(line: Line, code: str, message: str) -> bytes:
    """The result of a request that was never answered, as a line."""
    error = {"code": code, "message": message}
    found = {"id": new_id("batch_req_"), "custom_id": line.custom_id, "response": None, "error": error}
    return encode(found) + b"\n"


class _Details(msgspec.Struct):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


_NO_DETAILS = _Details()


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


class _Response(msgspec.Struct):
    body: _Body


class _Status(msgspec.Struct):
    status_code: int


class _Outcome(msgspec.Struct):
    response: _Status | None


class _Named(msgspec.Struct):
    custom_id: str


class _Result(_Named):
    response: _Response | None = None


_decode_outcome = msgspec.json.Decoder(_Outcome).decode
_decode_named = msgspec.json.Decoder(_Named).decode
_decode_result = msgspec.json.Decoder(_Result).decode


class Tally(msgspec.Struct):
    """Results in one file, and the tokens of their requests."""

    count: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def add(self, text: bytes) -> str:
        """Count a result; return its request's `custom_id`."""
        self.count += 1
        try:
            found = _decode_result(text)
        except msgspec.ValidationError:
            # A body of a guard's or of another server, whose usage is none.
            return _decode_named(text).custom_id
        usage = found.response.body.usage if found.response is not None else None
        if usage is not None:
            self.input_tokens += usage.prompt_tokens + usage.input_tokens
            self.output_tokens += usage.completion_tokens + usage.output_tokens
            of_input = usage.prompt_tokens_details or usage.input_tokens_details or _NO_DETAILS
            of_output = usage.completion_tokens_details or usage.output_tokens_details or _NO_DETAILS
            self.cached_tokens += of_input.cached_tokens
            self.reasoning_tokens += of_output.reasoning_tokens
        return found.custom_id


def failures(path: Path) -> int:
    """Number of the results in a file that are errors."""
    with path.open("rb") as file:
        outcomes = (_decode_outcome(text).response for text in file)
        return sum(outcome is None or outcome.status_code != 200 for outcome in outcomes)


def resume(path: Path, tally: Tally) -> set[str]:
    """The `custom_id`s that a file of results has; a last line that was not written to its end is cut off.

    Args:
        path: path of the file, which need not exist.
        tally: counter of the results.
    """
    done: set[str] = set()
    if not path.exists():
        return done
    whole = 0
    with path.open("rb") as file:
        for text in file:
            if not text.endswith(b"\n"):
                break
            done.add(tally.add(text))
            whole += len(text)
    os.truncate(path, whole)
    return done


def append(path: Path, text: bytes) -> None:
    """Write a result to the end of a file: all of it, or nothing.

    Raises:
        OSError: it does not fit.
    """
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        if file.write(text) != len(text):
            os.ftruncate(file.fileno(), size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
