"""Token cache: the tokens of long texts by their parts, so that a conversation's beginning is tokenized once."""

from __future__ import annotations

import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable

from openai_bls.triton_models.preprocessing.borders import parts

PART_CHARS = 1024
"""Characters that a part has at least: a few short messages are one."""

# Bytes of a part in the dictionary, next to its text and its tokens.
_ENTRY_BYTES = 200

Tokens = tuple[int, ...]


class TokenCache:
    """Tokens of parts of texts, by the parts; the least recently used are dropped.

    A part's tokens are the same whatever is before it: it is found too where something before it was edited, or in
    another conversation. Keys are whole texts, so that no two are taken for one another. Any thread may use it.

    Args:
        encode: gives the token ids of a text without the tokenizer's own special tokens.
        border: pattern of the places where a text can be cut.
        max_bytes: memory of all entries, with their texts.
        part_chars: characters that a part has at least.
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        border: re.Pattern[str],
        max_bytes: int,
        part_chars: int = PART_CHARS,
    ) -> None:
        self._encode = encode
        self._border = border
        self._max_bytes = max_bytes
        self._part_chars = part_chars
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, Tokens] = OrderedDict()
        self._bytes = 0
        self._numbers: dict[int, int] = {}

    @property
    def size_bytes(self) -> int:
        """Memory of all entries."""
        return self._bytes

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, of which only parts that are not known are tokenized."""
        *known, rest = parts(text, self._border, self._part_chars)
        with self._lock:
            found = [self._get(part) for part in known]
        ids: list[int] = []
        for part, tokens in zip(known, found, strict=True):
            ids += tokens if tokens is not None else self._learn(part)
        # The last part is another one in the next turn, which goes on.
        ids += self._encode(rest)
        return ids

    def _get(self, part: str) -> Tokens | None:
        tokens = self._entries.get(part)
        if tokens is not None:
            self._entries.move_to_end(part)
        return tokens

    def _learn(self, part: str) -> Tokens:
        ids = self._encode(part)
        # One object for each id, not for each token: 8 bytes in place of 36, and a list of them is made by copying.
        tokens = tuple(map(self._numbers.setdefault, ids, ids))
        size = _size(part, tokens)
        with self._lock:
            if part not in self._entries and size <= self._max_bytes:
                self._entries[part] = tokens
                self._bytes += size
            while self._bytes > self._max_bytes:
                self._bytes -= _size(*self._entries.popitem(last=False))
        return tokens


def _size(part: str, tokens: Tokens) -> int:
    return _ENTRY_BYTES + sys.getsizeof(part) + sys.getsizeof(tokens)
