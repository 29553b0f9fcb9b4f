"""Pool of worker processes, for work that may take too much time or memory: what does is ended, and nothing else."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from openai_bls.core.errors import EngineError
from openai_bls.core.processes.machine import Process
from openai_bls.core.processes.script_process import LostProcessError, ScriptProcess

logger = logging.getLogger(__name__)

T = TypeVar("T")

Reason = Literal["cpu", "time", "died"]
"""End of a worker: by its budget of CPU time, by the limit in seconds, or by anything else (memory most likely)."""

_SCRIPT = Path(__file__).with_name("worker.py")


class WorkerLostError(LostProcessError):
    """The process has ended in the midst of a job."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class Work(NamedTuple):
    """Work of a pool: the program of its workers, and the limits of a job."""

    process: Process
    """Kind of the workers."""
    module: Path
    """Module with `load` and `answer`, see `worker.py`."""
    folders: Sequence[str]
    """Folders of the packages that it imports."""
    cpu_s: float
    """Seconds of CPU time of a job; loading is not counted."""
    time_limit_s: float
    """Seconds after which a job is ended whatever has kept it: more than the machine needs under load."""
    memory_bytes: int
    """Address space of a process beyond what it has when it is loaded."""


class Worker(ScriptProcess):
    """One worker process. Belongs to one thread at a time.

    Args:
        work: jobs and limits.
    """

    def __init__(self, work: Work) -> None:
        variables = {
            # Large blocks go back to the system when they are freed.
            "MALLOC_MMAP_THRESHOLD_": "131072",
            # Each thread of a library takes memory.
            "OMP_NUM_THREADS": "1",
        }
        super().__init__(_SCRIPT, [str(work.module), str(work.cpu_s), str(work.memory_bytes), *work.folders], variables)
        self._expired = False
        self.is_spent = False
        """Set by a job after which the process is not to be used again."""

    def expire(self) -> None:
        """Kill it at its limit."""
        self._expired = True
        self.kill()

    def _lost(self) -> WorkerLostError:
        self._popen.kill()
        if self._popen.wait() == -signal.SIGPROF:
            return WorkerLostError("cpu")
        return WorkerLostError("time" if self._expired else "died")


class WorkerPool:
    """Worker processes, started when they are needed: as many as there are jobs at a time. Any thread may use it.

    Args:
        work: jobs and limits.
        at_rest: most processes that are kept without a job.
    """

    def __init__(self, work: Work, at_rest: int) -> None:
        self._work = work
        self._at_rest = at_rest
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Ids of the processes."""
        with self._lock:
            return [worker.pid for worker in self._all]

    def run(self, job: Callable[[Worker], T], *, whole: tuple[type[Exception], ...] = ()) -> T:
        """Result of `job` with a worker.

        Args:
            job: writes a job and reads the whole of its answer.
            whole: errors that it raises after the whole of the answer.

        Raises:
            WorkerLostError: the worker has ended, or was at its limit; the next job gets another.
            EngineError: the pool has been closed.
        """
        worker = self._taken()
        is_whole = False
        timer = threading.Timer(self._work.time_limit_s, worker.expire)
        timer.daemon = True
        timer.start()
        try:
            result = job(worker)
            is_whole = True
            return result
        except WorkerLostError as lost:
            logger.warning("the %s has ended in the midst of a job (%s)", self._work.process.name, lost.reason)
            raise
        except whole:
            is_whole = True
            raise
        finally:
            timer.cancel()
            self._put_back(worker, is_whole=is_whole and not worker.is_spent)

    def close(self) -> None:
        """Kill the processes."""
        with self._lock:
            self._closed = True
            running = list(self._all)
            idle, self._idle = self._idle, []
        for worker in running:
            worker.kill()
        for worker in idle:
            worker.close()

    def _taken(self) -> Worker:
        with self._lock:
            if self._closed:
                raise EngineError("The server is shutting down.")
            if self._idle:
                return self._idle.pop()
        return self._started()

    def _started(self) -> Worker:
        worker = Worker(self._work)
        with self._lock:
            self._all.add(worker)
        return worker

    def _put_back(self, worker: Worker, *, is_whole: bool) -> None:
        with self._lock:
            if is_whole and not self._closed and len(self._idle) < self._at_rest:
                self._idle.append(worker)
                return
            self._all.discard(worker)
            is_wanted = not is_whole and not self._closed
        worker.close()
        if is_wanted:
            # It loads while nobody waits for it yet.
            replacement = self._started()
            with self._lock:
                self._idle.append(replacement)
