"""Pool of decoder processes with limits, which decode images or audio for the API keys in turn.

The processes of one kind have one protocol. A job is its head and the encoded bytes. The answer is `S` and the size of
what is to come, upon which the reader says `G` (go on) once it has room for it, or anything else; then `P` and what was
decoded. Or it is `E`, a code, and what is wrong.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from openai_bls.core.errors import EngineError, OverloadedError
from openai_bls.core.keys.turns import FairExecutor
from openai_bls.core.processes.machine import Process
from openai_bls.core.processes.worker_pool import Work, Worker, WorkerPool
from openai_bls.pipeline.media.errors import MediaError

T = TypeVar("T")

Reserve = Callable[[int], None]
"""Reserves the bytes of what is decoded; raises ApiError."""

_ERROR = struct.Struct("<HH")
"""Bytes of the code and of the sentence's end."""


class Limits(NamedTuple):
    """Limits of a process."""

    cpu_s: float
    """Seconds of CPU time of a job."""
    time_limit_s: float
    """Seconds after which a process that is at a job is killed."""
    memory_bytes: int
    """Address space beyond what it has when it is loaded."""


class Packages(NamedTuple):
    """Packages that the processes import."""

    what: str
    """What cannot be decoded without them, in a message to the client."""
    names: Mapping[str, str]
    """Module → name of its package."""


class DecoderPool:
    """Decodes as many files at a time as there are processes; these are started when they are needed.

    No key's files make another's wait for more than one of them.

    Args:
        process: kind of the processes.
        module: module of their job, see `core/processes/worker.py`.
        packages: packages that it imports.
        limits: limits of a process.
        processes: number of processes.
        leaves_one: whether a key leaves one process to others, where a file may take long.
    """

    def __init__(
        self,
        process: Process,
        module: Path,
        packages: Packages,
        limits: Limits,
        processes: int,
        leaves_one: Callable[[], bool] = lambda: False,
    ) -> None:
        folders: dict[str, None] = {}
        self._missing = ""
        for name, package in packages.names.items():
            found = importlib.util.find_spec(name)
            if found is None or found.origin is None:
                self._missing = f"{packages.what} cannot be decoded: the server does not have the package {package}."
            else:
                folders[str(Path(found.origin).parent.parent)] = None
        self._pool = WorkerPool(Work(process, module, list(folders), *limits), at_rest=processes)
        self._turns = FairExecutor(processes, process.name, leaves_one=leaves_one)

    @property
    def pids(self) -> list[int]:
        """Ids of the processes."""
        return self._pool.pids

    async def decode(self, key: str, job: Callable[[Worker], T]) -> T:
        """Result of `job` with a process, when it is the key's turn; cancelling this leaves the process at work.

        Args:
            key: name of the API key whose turn it is to be.
            job: writes a job and reads the whole of its answer, in a thread.

        Raises:
            MediaError: of `job`.
            ApiError: of `job`, or a package is missing.
            WorkerLostError: it takes too much time or memory.
        """
        return await asyncio.wrap_future(self._turns.submit(key, functools.partial(self._run, job)))

    def close(self) -> None:
        """Kill the processes."""
        self._turns.close()
        self._pool.close()

    def _run(self, job: Callable[[Worker], T]) -> T:
        if self._missing:
            raise EngineError(self._missing)
        return self._pool.run(job, whole=(MediaError, OverloadedError))


def go_on(worker: Worker, reserve: Reserve, size: int) -> None:
    """Have a worker decode what takes `size` bytes, once there is room for it.

    Raises:
        ApiError: of `reserve`; the worker is told.
    """
    try:
        reserve(size)
    except BaseException:
        worker.send([b"N"])
        raise
    worker.send([b"G"])


def expect(worker: Worker, kind: bytes, size: int, refuse: Callable[[str, str], MediaError]) -> bytes:
    """`size` bytes of an answer of that kind.

    Args:
        worker: process that answers.
        kind: letter of the answer.
        size: bytes that follow it.
        refuse: makes the error of a code and a sentence's end.

    Raises:
        MediaError: the answer is an error.
        WorkerLostError: there is none.
    """
    if worker.read(1) == kind:
        return worker.read(size)
    code, fault = _ERROR.unpack(worker.read(_ERROR.size))
    raise refuse(worker.read(code).decode(), worker.read(fault).decode())
