"""Adapters of the embedded engine: loaded into slots of the model's layers, and held there while sequences use them."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from openai_bls.core.engine import LoraError
from openai_bls.core.manifest import EngineLoadError, Manifest
from openai_bls.engines.adapters import WEIGHTS_FILE, read_adapter
from openai_bls_transformers.model.lora_layers import LoraLayers

logger = logging.getLogger(__name__)


class LoadedAdapter:
    """An adapter in its slot."""

    def __init__(self, slot: int, number: int) -> None:
        self.slot = slot
        self.number = number
        """Never used twice, by which cached prompts are told apart."""
        self.users = 0
        """Sequences."""
        self.unloaded = False


class Adapters:
    """Adapters by name. All methods may be called from any thread; one at a time loads or unloads."""

    def __init__(self, model: Any, max_loras: int, max_rank: int, base_names: Sequence[str] = ()) -> None:
        """Make room in `model`, which goes by `base_names`."""
        self._base_names = base_names
        self._layers = LoraLayers(model, max_loras, max_rank)
        self._free = list(range(max_loras, 0, -1))
        self._numbers = itertools.count(1)
        self._loaded: dict[str, LoadedAdapter] = {}
        self._names: dict[int, str] = {}
        """Name by number, of adapters that were unloaded too."""
        self._lock = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """Those that sequences may have."""
        return tuple(self._loaded)

    def load(self, name: str, folder: Path) -> None:
        """Load the adapter in `folder` under a name that is free.

        Raises:
            LoraError: it cannot be loaded.
        """
        adapter = read_adapter(folder)
        self._layers.check(adapter)
        if base := adapter.other_base(self._base_names):
            logger.warning("the adapter %s is of the base model %s, by its base_model_name_or_path", name, base)
        with self._lock:
            if not self._free:
                raise LoraError("requests to an adapter that was unloaded still hold its slot: try again soon")
            slot = self._free.pop()
        try:
            try:
                weights = load_file(folder / WEIGHTS_FILE)
            except Exception as error:  # of the library
                raise LoraError(f"{WEIGHTS_FILE} cannot be read: {error}") from None
            self._layers.write(slot, adapter, weights)
        except BaseException:
            with self._lock:
                self._free.append(slot)
            raise
        with self._lock:
            number = next(self._numbers)
            self._names[number] = name
            self._loaded[name] = LoadedAdapter(slot, number)

    def name_of(self, number: int) -> str:
        """Name of the adapter with a number."""
        return self._names[number]

    def unload(self, name: str) -> None:
        """Let no further sequence have an adapter; its slot is free when the last one has ended."""
        with self._lock:
            adapter = self._loaded.pop(name)
            adapter.unloaded = True
            self._free_if_unused(adapter)

    def acquire(self, name: str) -> LoadedAdapter | None:
        """The adapter for one sequence, to be given back by `release`; None if there is none of that name."""
        with self._lock:
            adapter = self._loaded.get(name)
            if adapter is not None:
                adapter.users += 1
            return adapter

    def release(self, adapter: LoadedAdapter) -> None:
        """End one sequence's use."""
        with self._lock:
            adapter.users -= 1
            self._free_if_unused(adapter)

    def _free_if_unused(self, adapter: LoadedAdapter) -> None:
        if adapter.unloaded and not adapter.users:
            self._free.append(adapter.slot)


def built_in(model: Any, version_dir: Path, manifest: Manifest) -> Adapters | None:
    """The adapters that were built in, on a model that runs as it was loaded; None if there is no room for any.

    Raises:
        EngineLoadError: one does not load.
    """
    described = manifest.lora
    if not described.max_loras:
        return None
    names = (manifest.model_name, manifest.builder.get("model", ""))
    adapters = Adapters(model, described.max_loras, described.max_lora_rank, names)
    for name, folder in described.adapters.items():
        try:
            adapters.load(name, version_dir / folder)
        except LoraError as error:
            raise EngineLoadError(f"the adapter {name} does not load: {error}") from None
    return adapters
