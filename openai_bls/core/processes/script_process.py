"""Python script in a process without secrets, which does jobs that come by its standard input."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, cast

from openai_bls.core.processes.process_tree import interpreter

# Of the server's environment: where a Python in an unusual place has its libraries.
_ENVIRONMENT = ("LD_LIBRARY_PATH", "PATH")


class LostProcessError(Exception):
    """The process has ended in the midst of a job."""


class ScriptProcess:
    """One process. Belongs to one thread at a time, but for what any thread may call.

    Args:
        script: path of the script, which Python runs without site-packages.
        arguments: its arguments.
        variables: environment variables besides those that Python needs.
    """

    def __init__(self, script: Path, arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        self._popen = subprocess.Popen(
            [interpreter(), "-I", "-S", str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environment, **(variables or {})},
            cwd="/",
            pipesize=1 << 20,
        )
        self._source = cast("IO[bytes]", self._popen.stdout)
        self._target = cast("IO[bytes]", self._popen.stdin)

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._popen.pid

    def send(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Send a part of a job; raises LostProcessError."""
        try:
            for piece in pieces:
                self._target.write(piece)
            self._target.flush()
        except OSError:
            raise self._lost() from None

    def read(self, size: int) -> bytes:
        """`size` bytes of the answer; raises LostProcessError."""
        data = self._source.read(size)
        if len(data) < size:
            raise self._lost()
        return data

    def kill(self) -> None:
        """Kill it; harmless if it has ended. From any thread."""
        self._popen.kill()

    def close(self) -> None:
        """Kill it, and wait for its end."""
        self._popen.kill()
        self._popen.wait()
        for pipe in (self._target, self._source):
            # What it has not read any more is still to be written.
            with contextlib.suppress(OSError):
                pipe.close()

    def _lost(self) -> LostProcessError:
        """Error of a process that does not take or answer any more."""
        return LostProcessError()
