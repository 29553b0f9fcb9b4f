"""Large request bodies: counted before they are decoded, and parsed in threads, so that other requests do not wait.

A decoder of JSON holds the GIL from the first byte to the last. What that takes goes by the number of values, and
not by bytes: a body of long texts is decoded in milliseconds, one of 20 MB of numbers in seconds. A small body may
refer to much that is stored: `check_thread` says so when it is met.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.keys.turns import FairExecutor

T = TypeVar("T")

_LARGE_BYTES = 64 * 1024
_MANY_ITEMS = 256
# Bytes that are counted at once, in a tenth of a millisecond.
_SLICE = 64 * 1024
_LET_GO_BYTES = 8 * _SLICE
_NOT_STRUCTURAL = bytes(set(range(256)) - set(b'"[{,'))

# Two, so that one huge body does not hold up all others; by key in turn, so that many do not hold up another key's.
_THREADS = FairExecutor(2, "parse")


class ThreadNeededError(Exception):
    """Raised on the event loop by a parse that would take long there; `parsed` repeats it in a thread."""


def is_large(body: bytes | Mapping[str, Any]) -> bool:
    """True if parsing takes about a millisecond or more."""
    if isinstance(body, bytes):
        return len(body) > _LARGE_BYTES or (len(body) > 16 * _MANY_ITEMS and body.count(b"{") > _MANY_ITEMS)
    return sum(len(value) for value in body.values() if isinstance(value, (list, dict))) > _MANY_ITEMS


async def parsed(parse: Callable[[], T], *, large: bool, key: str) -> T:
    """Result of `parse`, which runs in a thread if it is `large`; raises as `parse` does.

    Args:
        parse: work in Python. One that calls `check_thread` may be called twice: nothing of the first call may be left.
        large: whether it takes about a millisecond or more.
        key: name of the API key whose turn it takes.
    """
    if not large:
        with suppress(ThreadNeededError):
            return parse()
    return await asyncio.wrap_future(_THREADS.submit(key, parse))


def is_much(items: int, size: int) -> bool:
    """True if decoding or encoding so many items, of so many bytes together, takes about a millisecond or more."""
    return items > _MANY_ITEMS or size > _LARGE_BYTES


def check_thread(items: int, size: int) -> None:
    """Have a parse that is to decode so much of what is stored repeated in a thread, unless it runs in one.

    Raises:
        ThreadNeededError: it is much, and this is the event loop's thread.
    """
    if is_much(items, size):
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise ThreadNeededError


def let_go() -> None:
    """Let other threads run; called in a thread at least once in a millisecond of its work.

    Else a thread that is at work in Python keeps the GIL for 5 ms (`sys.getswitchinterval`) when others want it.
    """
    time.sleep(0)


def check_values(text: bytes, limit: int, param: str | None = None) -> None:
    """Refuse JSON text that has more values than the server decodes.

    Args:
        text: JSON text; of any other the count means nothing.
        limit: most values: items of arrays, values of objects.
        param: the field that holds the text; None if it is the whole body, whose limit is `max_request_values`.

    Raises:
        InvalidRequestError: it has more.
    """
    count = 1
    inside = False
    escape = b""
    for start in range(0, len(text), _SLICE):
        if start and not start % _LET_GO_BYTES:
            let_go()
        piece = escape + text[start : start + _SLICE]
        if inside and b'"' not in piece and not piece.endswith(b"\\"):
            # In the middle of a long text, base64 most often.
            escape = b""
            continue
        escape = b""
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"")
            if piece.endswith(b"\\"):
                piece, escape = piece[:-1], b"\\"
            piece = piece.replace(b'\\"', b"")
        parts = piece.translate(None, _NOT_STRUCTURAL).split(b'"')
        count += len(b"".join(parts[inside::2]))
        inside ^= not len(parts) % 2
        if count > limit:
            what = "The request body" if param is None else f"'{param}'"
            where = " (max_request_values)" if param is None else ""
            raise InvalidRequestError(
                f"{what} has more than {limit} values{where}.", param=param, code="too_many_values"
            )


def check_count(count: int, field: str, max_items: int | None) -> None:
    """Refuse a field with more items than any context has tokens, of which each takes at least one.

    Args:
        count: items of the field, those inside of its items included.
        field: name of the field.
        max_items: tokens of the longest context of the served models; None if that is not known.

    Raises:
        InvalidRequestError: they cannot fit.
    """
    if max_items is not None and count > max_items:
        raise InvalidRequestError(
            f"'{field}' has {count} items, each of which takes at least one token; the longest context of the served "
            f"models has {max_items}.",
            param=field,
            code="context_length_exceeded",
        )
