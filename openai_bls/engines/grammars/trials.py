"""Trials of grammars: each is compiled in a process that can be ended, before the engine's own compiles it.

The library has limits, but knows none of its time and memory: `multipleOf` and patterns that are joined cost seconds
and hundreds of megabytes within them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import struct
import subprocess
import threading
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import IO, cast

from openai_bls.core.processes.process_tree import interpreter
from openai_bls.engines.grammars import trial_worker
from openai_bls.engines.grammars.errors import BEYOND_LIMITS, GivenUpError, GrammarError, message

logger = logging.getLogger(__name__)

_WALL_S = 120.0
"""Seconds after which a process that does not answer is killed, on a machine where CPU time is scarce."""
# Of the server's environment: where a Python in an unusual place has its libraries.
_ENVIRONMENT = ("LD_LIBRARY_PATH", "PATH")
_TOO_LONG = f"the grammar takes more than {trial_worker.CPU_S:g} s of CPU time to compile: simplify it"
_TOO_LARGE = (
    f"the grammar takes more than {trial_worker.MEMORY_BYTES >> 20} MiB of memory to compile, or is nested too deeply: "
    "simplify it"
)


class _LostError(Exception):
    """The process has ended in the midst of a job."""


class _Process:
    """One trial process. Belongs to one thread at a time.

    Args:
        tokens: vocabulary of `trial_worker.TokenizerWrapper`.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        found = importlib.util.find_spec("llguidance")
        if found is None or found.origin is None:
            raise ImportError("llguidance is not installed")
        folder = Path(found.origin).parent.parent
        self._popen = subprocess.Popen(
            [interpreter(), "-I", "-S", str(Path(trial_worker.__file__)), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            cwd="/",
            bufsize=0,
        )
        self._sending = threading.Lock()
        self._has_job = self._given_up = False
        texts = b"".join(tokens)
        lengths = struct.pack(f"<{len(tokens)}I", *map(len, tokens))
        with contextlib.suppress(OSError):  # of a process that has ended, which the first job finds
            self._send(trial_worker.VOCABULARY.pack(len(tokens), len(texts)) + lengths + texts)

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._popen.pid

    def run(self, lark: str) -> tuple[bytes, bytes]:
        """Kind and content of the answer to a job.

        Raises:
            _LostError: the process has ended.
        """
        grammar = lark.encode()
        with self._sending:
            if self._given_up:
                self._given_up = False
                return b"G", b""
            try:
                self._send(b"J" + trial_worker.JOB.pack(len(grammar)) + grammar)
            except OSError:
                raise _LostError from None
            self._has_job = True
        kind = self._read(1)
        content = self._read(*trial_worker.ANSWER.unpack(self._read(trial_worker.ANSWER.size)))
        with self._sending:
            self._has_job = self._given_up = False
        return kind, content

    def give_up(self) -> None:
        """End the job that runs, or that is just to be sent. From any thread."""
        with self._sending, contextlib.suppress(OSError):
            self._given_up = True
            if self._has_job:
                self._send(b"C")

    def kill(self) -> None:
        """Kill it; harmless if it has ended. From any thread."""
        self._popen.kill()

    def close(self) -> None:
        """Kill it, and wait for its end."""
        self._popen.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            with contextlib.suppress(OSError):
                cast("IO[bytes]", pipe).close()

    def _send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[cast("IO[bytes]", self._popen.stdin).write(left) :]

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = cast("IO[bytes]", self._popen.stdout).read(size - len(data))
            if not piece:
                raise _LostError
            data += piece
        return data


class Trials:
    """Trial processes of one vocabulary, as many as there are threads that use them; each is started when needed.

    Args:
        tokens: vocabulary of `trial_worker.TokenizerWrapper`.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = tokens
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._running: dict[Hashable, _Process] = {}
        """Processes at work by the name of the trial."""
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Ids of the processes."""
        with self._lock:
            return [process.pid for process in (*self._idle, *self._running.values())]

    def run(self, name: Hashable, lark: str) -> int:
        """Try a grammar in llguidance's Lark.

        Args:
            name: name of the trial, which no other has that runs.
            lark: the grammar.

        Returns:
            The bytes that it takes in memory.

        Raises:
            GrammarError: it cannot be compiled within the budget.
            GivenUpError: it was given up.
            RuntimeError: there is no process that answers.
        """
        process = self._taken(name)
        whole = False
        timer = threading.Timer(_WALL_S, process.kill)
        timer.daemon = True
        timer.start()
        try:
            kind, content = process.run(lark)
            whole = True
        except _LostError:
            raise RuntimeError("the process that compiles grammars has ended") from None
        finally:
            timer.cancel()
            self._put_back(name, process, whole=whole)
        match kind:
            case b"S":
                return int(content)
            case b"T":
                raise GrammarError(_TOO_LONG)
            case b"M":
                raise GrammarError(_TOO_LARGE)
            case b"G":
                raise GivenUpError
        said = message(content.decode(errors="replace"))
        raise GrammarError(f"{BEYOND_LIMITS}: {said}" if kind == b"L" else said)

    def give_up(self, name: Hashable) -> None:
        """End a trial; one that does not run is passed over. From any thread."""
        with self._lock:
            process = self._running.get(name)
            if process is not None:
                process.give_up()

    def close(self) -> None:
        """Kill the processes."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for process in self._running.values():
                process.kill()
        for process in idle:
            process.close()

    def _taken(self, name: Hashable) -> _Process:
        with self._lock:
            if self._closed:
                raise GivenUpError
            process = self._idle.pop() if self._idle else None
            if process is not None:
                self._running[name] = process
                return process
        process = _Process(self._tokens)
        with self._lock:
            self._running[name] = process
        return process

    def _put_back(self, name: Hashable, process: _Process, *, whole: bool) -> None:
        with self._lock:
            del self._running[name]
            if whole and not self._closed:
                self._idle.append(process)
                return
        process.close()
