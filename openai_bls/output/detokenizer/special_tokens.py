"""Special tokens of a tokenizer by their text, and their places in other texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class SpecialTokens:
    """Special tokens of one tokenizer.

    Args:
        tokens: the tokens by id.
    """

    def __init__(self, tokens: Mapping[int, str]) -> None:
        self.text_of = {token_id: text for token_id, text in tokens.items() if text}
        """Id → text."""
        self.ids: dict[str, tuple[int, ...]] = {}
        """Text → ids: a tokenizer may have it twice."""
        for token_id, text in self.text_of.items():
            self.ids[text] = (*self.ids.get(text, ()), token_id)
        self._first = frozenset(text[0] for text in self.ids)
        self._lengths = sorted({len(text) for text in self.ids}, reverse=True)

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """The pieces of `text`, and whether each is a special token: the longest at the first place, as tokenizers
        read a text."""
        start = place = 0
        while place < len(text):
            found = self._at(text, place)
            if found is None:
                place += 1
                continue
            if place > start:
                yield text[start:place], False
            yield found, True
            start = place = place + len(found)
        if start < len(text):
            yield text[start:], False

    def _at(self, text: str, place: int) -> str | None:
        if text[place] not in self._first:
            return None
        candidates = (text[place : place + length] for length in self._lengths)
        return next((candidate for candidate in candidates if candidate in self.ids), None)
