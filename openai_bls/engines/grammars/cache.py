"""Compiled grammars that are kept, by API key: each key has its own, within its share of the bytes and of the number.

No key uses what another one had compiled, since the requests of a compiled grammar share its lexer: one of them that
takes it beyond its limits ends the others, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from openai_bls.core.engine_types import Grammar
from openai_bls.core.keys.shares import Shares

MAX_GRAMMARS = 64
"""Grammars of all keys, those included that cannot be compiled."""
MAX_BYTES = 256 * 1024 * 1024
"""Bytes of all of them as they are compiled. The lexers grow as requests use them, up to `MAX_LEXER_STATES`."""


class Owned(NamedTuple):
    """A grammar of an API key."""

    owner: str
    """Name of the key."""
    grammar: Grammar


class _Entry(NamedTuple):
    name: str
    compiled: Any
    size: int


class GrammarCache:
    """Compiled grammars, or the errors in their place. Used with a lock."""

    def __init__(self, max_grammars: int = MAX_GRAMMARS, max_bytes: int = MAX_BYTES) -> None:
        self._shares = Shares(max_grammars, max_bytes)
        self._entries: dict[Owned, _Entry] = {}
        self._owned: dict[str, Owned] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        """Bytes of all grammars."""
        return self._shares.bytes

    def get(self, owned: Owned) -> Any:
        """Entry of a grammar; None if there is none."""
        entry = self._entries.get(owned)
        if entry is None:
            return None
        self._shares.use(entry.name)
        return entry.compiled

    def put(self, owned: Owned, compiled: Any, size: int) -> None:
        """Keep a compiled grammar, or the error in its place.

        Args:
            owned: the grammar, which is not kept yet.
            compiled: the compiled grammar, or the message of the error.
            size: bytes that it takes, without its text.
        """
        self._count += 1
        entry = _Entry(str(self._count), compiled, size + len(owned.grammar.text))
        self._entries[owned] = entry
        self._owned[entry.name] = owned
        self._shares.add(owned.owner, entry.name)
        self._shares.charge(owned.owner, entry.size)
        while (name := self._shares.excess()) is not None:
            self.forget(self._owned[name])

    def forget(self, owned: Owned) -> None:
        """Keep a grammar no longer; one that is not kept is passed over."""
        entry = self._entries.pop(owned, None)
        if entry is not None:
            del self._owned[entry.name]
            self._shares.remove(entry.name)
            self._shares.charge(owned.owner, -entry.size)
