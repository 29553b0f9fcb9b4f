"""Numbers of adapters: TensorRT-LLM keeps an adapter's weights under its number.

It never frees those on the GPU (pull request 12815 does, after 1.2.1), so a folder that is loaded again unchanged gets
the number that it had, and what loads have taken is said.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

logger = logging.getLogger(__name__)

_MIB = 1 << 20
_Folder = tuple[str, tuple[tuple[str, int, int], ...]]


class AdapterNumbers:
    """Numbers of folders, one for each state of each.

    Args:
        folders: folders that have the numbers from 1 on.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._numbers = {_state(folder): number for number, folder in enumerate(folders, 1)}
        self._next = max(self._numbers.values(), default=0) + 1
        self._bytes = 0

    def of(self, folder: Path, gpu_bytes: int) -> int:
        """Number of the adapter in `folder`, which takes `gpu_bytes` over all GPUs if it is new."""
        state = _state(folder)
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = self._next
            self._next += 1
            self._bytes += gpu_bytes
            logger.warning(
                "TensorRT-LLM keeps the weights of every adapter that is loaded while it runs: this one takes about "
                "%.1f MiB over all GPUs, those since the start %.1f MiB; the limit is their memory, and a reload of "
                "the model frees it",
                gpu_bytes / _MIB,
                self._bytes / _MIB,
            )
        return number


def _state(folder: Path) -> _Folder:
    """Path, and names, sizes and times of the files."""
    try:
        files = [(path.name, path.stat()) for path in sorted(folder.iterdir())]
    except OSError:
        files = []
    return str(folder.absolute()), tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)
