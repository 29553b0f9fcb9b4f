"""Scan of weights for numbers that are not finite: NaN in one row of an embedding spoils the requests that touch it,
which are none of the self-test's."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_CHUNK_BYTES = 1 << 20
"""Bytes that are looked at in one go: they and their copy stay in the CPU's cache."""
_TASK_CHUNKS = 64
_THREADS = 8

_NOT_FINITE: dict[str, tuple[type[np.unsignedinteger[Any]], int]] = {
    "F64": (np.uint64, 0x7FF0_0000_0000_0000),
    "F32": (np.uint32, 0x7F80_0000),
    "BF16": (np.uint16, 0x7F80),
    "F16": (np.uint16, 0x7C00),
    "F8_E5M2": (np.uint8, 0x7C),
    "F8_E4M3": (np.uint8, 0x7F),
}
"""Safetensors' name of a type → integers of its size, and the least of them, its sign left out, that is infinity or
NaN. Other types have neither."""


class _Part(NamedTuple):
    tensor: str
    dtype: str
    begin: int
    """Position in the file, in bytes."""
    end: int


def not_finite(path: Path, advance: Callable[[int], None] = lambda _: None) -> list[str]:
    """Names of the tensors in a safetensors file that have infinity or NaN among their numbers, sorted.

    Args:
        path: a whole file, as `core.checkpoint.safetensors_header` takes it.
        advance: called with the number of bytes that have been looked at.
    """
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ThreadPoolExecutor(_THREADS) as pool,
    ):

        def look(part: _Part) -> str | None:
            found = _has_any(data, part)
            advance(part.end - part.begin)
            return part.tensor if found else None

        return sorted({name for name in pool.map(look, _parts(_header(data))) if name is not None})


def _header(data: mmap.mmap) -> Iterator[_Part]:
    size = int.from_bytes(data[:8], "little")
    for name, about in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in about["data_offsets"])
            yield _Part(name, about["dtype"], begin, end)


def _parts(tensors: Iterable[_Part]) -> Iterator[_Part]:
    step = _TASK_CHUNKS * _CHUNK_BYTES
    for tensor in tensors:
        if tensor.dtype in _NOT_FINITE:
            for begin in range(tensor.begin, tensor.end, step):
                yield tensor._replace(begin=begin, end=min(tensor.end, begin + step))


def _has_any(data: mmap.mmap, part: _Part) -> bool:
    kind, least = _NOT_FINITE[part.dtype]
    width = np.dtype(kind).itemsize
    numbers = np.frombuffer(data, kind, (part.end - part.begin) // width, part.begin)
    without_sign = kind((1 << (8 * width - 1)) - 1)
    chunk = _CHUNK_BYTES // width
    buffer = np.empty(chunk, kind)
    for begin in range(0, len(numbers), chunk):
        piece = numbers[begin : begin + chunk]
        if np.bitwise_and(piece, without_sign, out=buffer[: len(piece)]).max() >= least:
            return True
    return False
