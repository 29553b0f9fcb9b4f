"""Trials of grammars: each is compiled in a process that can be ended, before the engine's own compiles it.

The library has limits, but knows none of its time and memory: `multipleOf` and patterns that are joined cost seconds
and hundreds of megabytes within them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import struct
import threading
from collections.abc import Hashable, Sequence
from pathlib import Path

from openai_bls.core.processes.machine import GRAMMAR_TRIAL
from openai_bls.core.processes.script_process import LostProcessError, ScriptProcess
from openai_bls.engines.grammars import trial_worker
from openai_bls.engines.grammars.errors import BEYOND_LIMITS, GivenUpError, GrammarError, message

logger = logging.getLogger(__name__)

_WALL_S = 120.0
"""Seconds after which a process that does not answer is killed, on a machine where CPU time is scarce."""
_TOO_LONG = f"the grammar takes more than {trial_worker.CPU_S:g} s of CPU time to compile: simplify it"
_TOO_LARGE = (
    f"the grammar takes more than {trial_worker.MEMORY_BYTES >> 20} MiB of memory to compile, or is nested too deeply: "
    "simplify it"
)


class _Process(ScriptProcess):
    """One trial process. Belongs to one thread at a time.

    Args:
        tokens: vocabulary of `trial_worker.TokenizerWrapper`.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        found = importlib.util.find_spec("llguidance")
        if found is None or found.origin is None:
            raise ImportError("llguidance is not installed")
        super().__init__(Path(trial_worker.__file__), [str(Path(found.origin).parent.parent)])
        self._sending = threading.Lock()
        self._has_job = self._given_up = False
        texts = b"".join(tokens)
        lengths = struct.pack(f"<{len(tokens)}I", *map(len, tokens))
        with contextlib.suppress(LostProcessError):  # which the first job finds
            self.send([trial_worker.VOCABULARY.pack(len(tokens), len(texts)), lengths, texts])

    def run(self, lark: str) -> tuple[bytes, bytes]:
        """Kind and content of the answer to a job.

        Raises:
            LostProcessError: the process has ended.
        """
        grammar = lark.encode()
        with self._sending:
            if self._given_up:
                self._given_up = False
                return b"G", b""
            self.send([b"J", trial_worker.JOB.pack(len(grammar)), grammar])
            self._has_job = True
        kind = self.read(1)
        content = self.read(*trial_worker.ANSWER.unpack(self.read(trial_worker.ANSWER.size)))
        with self._sending:
            self._has_job = self._given_up = False
        return kind, content

    def give_up(self) -> None:
        """End the job that runs, or that is just to be sent. From any thread."""
        with self._sending, contextlib.suppress(LostProcessError):
            self._given_up = True
            if self._has_job:
                self.send([b"C"])


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
        except LostProcessError:
            raise RuntimeError(f"the {GRAMMAR_TRIAL.name} has ended in the midst of a job") from None
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
