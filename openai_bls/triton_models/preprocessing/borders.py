"""Borders of a text: places at which its tokens part whatever stands around them.

The tokenizers library looks for added tokens in the text as it comes, then normalizes and tokenizes what is between
them piece by piece. So a text can be cut before an added token, and each part gives the tokens that it gives in the
whole. The cut is before the token, not behind it, since a few pre-tokenizers treat the beginning of a text unlike the
rest (Metaspace with `prepend_scheme` "first"): a part begins with a token, as the text around it does at that place.

That needs a token which is found wherever it is spelled:

- It is looked for in the text, not in the normalized one, takes no white space before it along, and does not begin with
  white space, which a token before it could take.
- No added token contains it or overlaps its beginning. The search finds the leftmost token, and of several at one place
  the longest; a token that begins inside a border comes too late.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import AddedToken


def border_pattern(added: Iterable[AddedToken], wanted: str) -> re.Pattern[str] | None:
    """Pattern of the borders of a tokenizer; None if it has none.

    Args:
        added: all added tokens of the tokenizer.
        wanted: text with the tokens that are of use, such as a chat template. Each further one would make the search
            slower: some tokenizers have a thousand of them in reserve.
    """
    searched = [token for token in added if not token.normalized and token.content]
    if any(token.single_word for token in searched):
        # Whether it is found goes by the characters around it.
        return None
    contents = [token.content for token in searched]
    borders = [
        token.content
        for token in searched
        if token.content in wanted and not token.lstrip and not token.content[0].isspace()
        if not any(_hides(other, token.content) for other in contents)
    ]
    return re.compile("|".join(map(re.escape, borders))) if borders else None


def _hides(token: str, border: str) -> bool:
    """True if where `border` is spelled, `token` may be found instead of it."""
    if token != border and border in token:
        return True
    return any(token.endswith(border[:size]) for size in range(1, min(len(token), len(border))))


def parts(text: str, border: re.Pattern[str], least: int) -> Iterator[str]:
    """Parts of `text` between borders, in order.

    Where a part ends goes by what is before it: texts that begin alike have the same parts up to the one in which they
    differ. The last part is what is left, which is longer in a text that goes on.

    Args:
        text: text to cut.
        border: pattern of the borders.
        least: characters that each part but the last has at least, 1 or more.
    """
    start = 0
    while found := border.search(text, start + least):
        yield text[start : found.start()]
        start = found.start()
    yield text[start:]


# What stands between two tokens in the self-check: parts that change if something joins them, or comes first in a text.
_NEIGHBOURS: Sequence[str] = (
    "",
    "a",
    " ",
    "  b ",
    "\n\n",
    " \n",
    "'s 12",
    "\u0301e",
    "é",
    "▁x",
    "你好",
    "\u200d🙂",
    "A\t",
)


def sample(added: Iterable[AddedToken], border: re.Pattern[str]) -> str:
    """Text for a self-check: every border next to all neighbours, every added token next to a border."""
    contents = [token.content for token in added]
    borders = [content for content in contents if border.fullmatch(content)]
    pieces = [neighbour + content for content in borders for neighbour in _NEIGHBOURS]
    return "".join(pieces + [content + borders[0] + content for content in contents])
