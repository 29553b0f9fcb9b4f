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
        self._entries: OrderedDict[bytes, Tokens] = OrderedDict()
        self._bytes = 0
        self._numbers: dict[int, int] = {}

    @property
    def size_bytes(self) -> int:
        """Memory of all entries."""
        return self._bytes

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, of which only parts that are not known are tokenized."""
        *whole, rest = parts(text, self._border, self._part_chars)
        # As UTF-8, in which a part takes least: one rare character makes a str of four bytes for each.
        keys = [part.encode(errors="surrogatepass") for part in whole]
        with self._lock:
            found = [self._get(key) for key in keys]
        ids: list[int] = []
        for part, key, tokens in zip(whole, keys, found, strict=True):
            ids += tokens if tokens is not None else self._learn(part, key)
        # The last part is another one in the next turn, which goes on.
        ids += self._encode(rest)
        return ids

    def _get(self, key: bytes) -> Tokens | None:
        tokens = self._entries.get(key)
        if tokens is not None:
            self._entries.move_to_end(key)
        return tokens

    def _learn(self, part: str, key: bytes) -> Tokens:
        ids = self._encode(part)
        # One object for each id, not for each token: 8 bytes in place of 36, and a list of them is made by copying.
        tokens = tuple(map(self._numbers.setdefault, ids, ids))
        size = _size(key, tokens)
        with self._lock:
            if key not in self._entries and size <= self._max_bytes:
                self._entries[key] = tokens
                self._bytes += size
            while self._bytes > self._max_bytes:
                self._bytes -= _size(*self._entries.popitem(last=False))
        return tokens


def _size(key: bytes, tokens: Tokens) -> int:
    return _ENTRY_BYTES + sys.getsizeof(key) + sys.getsizeof(tokens)
