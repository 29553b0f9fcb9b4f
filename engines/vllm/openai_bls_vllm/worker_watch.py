"""Watch over vLLM's workers on this machine: the end of one is the death of the engine, told at once.

vLLM tells of it only after it has ended the other workers, which takes it 5 to 9 seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from openai_bls.core.processes.process_tree import descendants

_PREFIX_VARIABLE = "VLLM_PROCESS_NAME_PREFIX"


class WorkerWatch:
    """Workers below this process, found by the titles that vLLM gives them. Made, used and closed on an event loop.

    Args:
        on_lost: called with one sentence when a worker has ended.
    """

    def __init__(self, on_lost: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._ends: list[int] = []
        """File descriptors, each readable once its process has ended."""
        title = f"{os.environ.get(_PREFIX_VARIABLE, 'VLLM')}::Worker"
        for pid in descendants(os.getpid()):
            # Ended meanwhile: vLLM tells of it.
            with contextlib.suppress(OSError, AttributeError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace").split()
                if words and words[0].startswith(title):
                    end = os.pidfd_open(pid)
                    self._ends.append(end)
                    self._loop.add_reader(end, self._lost, f"vLLM's worker {words[0]} (process {pid}) has ended")

    def close(self) -> None:
        """Watch no more."""
        while self._ends:
            end = self._ends.pop()
            self._loop.remove_reader(end)
            os.close(end)

    def _lost(self, sentence: str) -> None:
        self.close()
        self._on_lost(sentence)
