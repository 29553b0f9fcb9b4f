"""Request log: one line for each request on standard output, as text or as JSON, never with anything of a prompt.

Standard output, not Triton's log: a line of that costs a model 0.1 ms, and quotes JSON.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import deque
from functools import lru_cache
from typing import Any

from openai_bls.core.errors import ApiError
from openai_bls.pipeline.lifecycle.context import RequestContext

MAX_WAITING_LINES = 10_000
"""Lines that wait for a reader of standard output that stands still; any more are dropped, and counted."""

# Characters of what comes from clients: ids, paths, names of models.
_MAX_CHARACTERS = 128
# Bytes of one write: as many as a pipe takes in one piece, so that no other process's output comes in between.
_MAX_WRITE_BYTES = 4096
# Seconds for which lines are gathered into one write.
_GATHER_S = 0.1
# Seconds that closing waits for a reader of standard output.
_CLOSE_S = 1.0

_UNNAMED = frozenset({"time", "method", "path", "status"})
_is_plain = re.compile(r"[\x21\x23-\x3c\x3e-\x7e]+").fullmatch
_encode = json.JSONEncoder(separators=(",", ":")).encode
_FIELD_PATH = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}")


def fields_of(observed: RequestContext, trace_id: str = "") -> dict[str, Any]:
    """Fields of a log line, of a request that has ended; what is not known is left out."""
    began, total, failure = observed.began_at, observed.total, observed.failure
    fields: dict[str, Any] = {
        "time": _time(observed.began_at_ns / 1e9 + observed.ended_at - began),
        "method": observed.method,
        "path": observed.path[:_MAX_CHARACTERS],
        "status": observed.status,
    }
    if observed.request_id:
        fields["request_id"] = observed.request_id[:_MAX_CHARACTERS]
    if observed.endpoint:
        fields["endpoint"] = observed.endpoint
    if observed.model:
        fields["model"] = observed.model[:_MAX_CHARACTERS]
    if observed.stream is not None:
        fields["stream"] = observed.stream
    if observed.key:
        fields["key"] = observed.key
    if total is not None:
        usage = total.usage
        fields["prompt_tokens"] = usage.prompt_tokens
        fields["cached_tokens"] = usage.prompt_tokens_details.cached_tokens
        fields["generated_tokens"] = usage.completion_tokens
        fields["reasoning_tokens"] = usage.completion_tokens_details.reasoning_tokens
        if total.queue_s is not None:
            fields["queue_s"] = _rounded(total.queue_s)
        if total.first_token_at is not None:
            fields["time_to_first_token_s"] = _rounded(total.first_token_at - began)
    fields["total_s"] = _rounded(observed.ended_at - began)
    if total is not None and total.finish_reasons:
        fields["finish_reason"] = ",".join(dict.fromkeys(total.finish_reasons))
    if observed.ignored:
        fields["ignored"] = ",".join(observed.ignored)
    if failure is not None:
        fields |= _failure(failure)
    if trace_id:
        fields["trace_id"] = trace_id
    return fields


def _failure(error: ApiError) -> dict[str, Any]:
    fields = {"error": error.code or error.type}
    # The name of a field, not whatever a client has put in the place of one.
    if error.param and _FIELD_PATH.fullmatch(error.param):
        fields["param"] = error.param
    return fields


def as_json(fields: dict[str, Any]) -> str:
    """One line of ASCII."""
    return _encode(fields)


def as_text(fields: dict[str, Any]) -> str:
    """One line of ASCII: time, method, path and status, then `name=value` for all else.

    Text with spaces, quotes and control characters is quoted as in JSON.
    """
    words = []
    for name, value in fields.items():
        word = value
        if type(value) is str and not _is_plain(value):
            word = _encode(value)
        elif type(value) is bool:
            word = "true" if value else "false"
        words.append(f"{word}" if name in _UNNAMED else f"{name}={word}")
    return " ".join(words)


def _time(seconds: float) -> str:
    """Seconds since 1970 as `2026-01-31T12:00:00.123Z`."""
    whole, micros = divmod(round(seconds * 1e6), 1_000_000)
    return f"{_date_and_time(whole)}.{micros // 1000:03d}Z"


@lru_cache(maxsize=4)
def _date_and_time(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _rounded(seconds: float) -> float:
    return round(max(0.0, seconds), 6)


class RequestLog:
    """Request log on a file descriptor, written by a separate thread: a reader that stands still holds up nobody.

    Args:
        form: `text` or `json`.
        descriptor: descriptor of an open file; 1 is standard output.
    """

    def __init__(self, form: str, descriptor: int = 1) -> None:
        self._format = as_json if form == "json" else as_text
        self._descriptor = descriptor
        self._lines: deque[bytes] = deque()
        self._dropped = 0
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._thread.start()

    def ended(self, observed: RequestContext, trace_id: str = "") -> None:
        """Write the line of a request that has ended; returns at once."""
        if len(self._lines) >= MAX_WAITING_LINES:
            self._dropped += 1
            return
        self._lines.append(self._format(fields_of(observed, trace_id)).encode() + b"\n")
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Write what waits, unless nobody reads it, and end the thread."""
        self._closing.set()
        self._wake.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while not self._closing.is_set() or self._lines:
            if not self._lines:
                self._wake.clear()
                # Whoever wrote or closed before that has woken nobody.
                if not (self._lines or self._closing.is_set()):
                    self._wake.wait()
            self._closing.wait(_GATHER_S)
            while self._lines:
                self._write(self._piece())
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                self._write(f"openai_bls: {dropped} lines of the request log were dropped: nobody read them\n".encode())

    def _piece(self) -> bytes:
        """Lines to write together, at least one."""
        piece = self._lines.popleft()
        while self._lines and len(piece) + len(self._lines[0]) <= _MAX_WRITE_BYTES:
            piece += self._lines.popleft()
        return piece

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                time.sleep(_GATHER_S)
            except OSError:
                # Nobody can read it any more.
                return
