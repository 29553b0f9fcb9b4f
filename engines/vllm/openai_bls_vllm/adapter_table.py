"""LoRA adapters of a loaded engine: those that requests may name, and those that were unloaded while in use."""

from __future__ import annotations

from collections.abc import Sequence

from openai_bls.core.engine import LoraError
from openai_bls_vllm.interface import LoraAdapter


class AdapterTable:
    """Changed under the engine's lock, one call at a time; `by_name` may be read by any thread.

    Args:
        adapters: adapters that are there from the beginning.
        room: adapters that vLLM may hold at a time.
    """

    def __init__(self, adapters: Sequence[LoraAdapter], room: int) -> None:
        self.by_name = {adapter.name: adapter for adapter in adapters}
        self.retired: dict[int, LoraAdapter] = {}
        """Adapters, by number, that were unloaded and that live requests still use."""
        self._room = room

    @property
    def numbers(self) -> list[int]:
        """Numbers of all that vLLM holds."""
        return [adapter.number for adapter in self.by_name.values()] + list(self.retired)

    def require_slot(self) -> None:
        """Raise `LoraError` if unloaded adapters take the room of a new one."""
        if len(self.numbers) >= self._room and self.retired:
            names = ", ".join(adapter.name for adapter in self.retired.values())
            raise LoraError(f"requests that run still use the unloaded {names}: load the adapter once they have ended")

    def add(self, adapter: LoraAdapter) -> None:
        """Let requests name an adapter."""
        self.by_name = {**self.by_name, adapter.name: adapter}

    def take_out(self, name: str) -> LoraAdapter:
        """Let no more requests name an adapter."""
        adapter = self.by_name[name]
        self.by_name = {other: found for other, found in self.by_name.items() if other != name}
        return adapter
