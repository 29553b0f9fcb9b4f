"""Adapters of a running engine, and their numbers: TensorRT-LLM keeps an adapter's weights under its number.

It never frees those on the GPU (pull request 12815 does, after 1.2.1), so a folder that is loaded again unchanged gets
the number that it had, and what loads have taken is said.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from openai_bls.core.engine_types import EngineInfo
from openai_bls.core.manifest import LoraSettings
from openai_bls.engines.adapters import require_loaded, require_room
from openai_bls_tensorrt_llm import lora
from openai_bls_tensorrt_llm.installed.interface import LoraAdapter, Version

logger = logging.getLogger(__name__)

_MIB = 1 << 20
_Folder = tuple[str, tuple[tuple[str, int, int], ...]]


class LoadedAdapters:
    """Adapters that requests may name. Any thread may load one, or take one away.

    Args:
        adapters: adapters that are there from the beginning.
        info: limits of the engine.
        settings: modules and rank that the engine was set up for.
        checkpoint: folder of the model's config.json, to which adapters that come later must fit.
        version: version of TensorRT-LLM.
    """

    def __init__(
        self,
        adapters: Sequence[LoraAdapter],
        info: EngineInfo,
        settings: LoraSettings,
        checkpoint: Path,
        version: Version,
    ) -> None:
        self._adapters = {adapter.name: adapter for adapter in adapters}
        self._info = info
        self._settings = settings
        self._checkpoint = checkpoint
        self._version = version
        self._numbers = AdapterNumbers(adapter.path for adapter in adapters)
        self._lock = threading.Lock()

    @property
    def info(self) -> EngineInfo:
        """Capabilities and limits of the engine, with the names of the adapters."""
        return self._info

    def get(self, name: str | None) -> LoraAdapter | None:
        """The adapter of that name, if it is loaded."""
        return None if name is None else self._adapters.get(name)

    def load(self, name: str, folder: Path) -> None:
        """Let requests name the adapter in `folder`; raises `LoraError` if the engine cannot apply it."""
        with self._lock:
            require_room(self._info, name)
            modules, max_rank = self._settings.target_modules, self._settings.max_lora_rank
            adapter = lora.read(folder, self._checkpoint, modules, max_rank, self._version)
            number = self._numbers.of(folder, lora.gpu_bytes(adapter))
            self._use({**self._adapters, name: LoraAdapter(name, folder, number)})

    def unload(self, name: str) -> None:
        """Forget an adapter; raises `LoraError` if it is not loaded."""
        with self._lock:
            require_loaded(self._info, name)
            self._use({other: adapter for other, adapter in self._adapters.items() if other != name})

    def _use(self, adapters: dict[str, LoraAdapter]) -> None:
        self._adapters = adapters
        self._info = msgspec.structs.replace(self._info, lora_names=tuple(adapters))


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
