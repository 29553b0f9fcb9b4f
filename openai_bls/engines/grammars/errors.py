"""Refusals of grammars by llguidance, in words for clients: shared by the engines that have it."""

from __future__ import annotations

import re

MAX_GRAMMAR_CHARACTERS = 1 << 18
"""Characters of a grammar as llguidance compiles it."""

BEYOND_LIMITS = "the grammar is beyond llguidance's limits"
"""Beginning of the message of a grammar that can be compiled, and not be followed further."""

_MAX_MESSAGE_CHARACTERS = 300
_MAX_READ_CHARACTERS = 2_000
_DUMP = re.compile("<backtrace>|<state>")
# As in `parser/src/lark.rs:75:3: `.
_SOURCE_PLACE = re.compile(r"\S+\.rs:\d+(:\d+)?:? *")


class GrammarError(Exception):
    """A grammar that cannot be compiled, or not be followed further; the message goes to the client."""


class GivenUpError(Exception):
    """Nobody waits any more for a grammar that is not compiled yet."""


def require_size(text: str) -> None:
    """Raise `GrammarError` for a grammar that is too large to compile."""
    if len(text) > MAX_GRAMMAR_CHARACTERS:
        raise GrammarError(
            f"the grammar is too large: its rules take {len(text)} characters, {MAX_GRAMMAR_CHARACTERS} at most"
        )


def message(error: object) -> str:
    """llguidance's message as the client gets it: one line, without its source places and its state."""
    # Cut first: it may quote a whole grammar, without any white space, and the search for places goes back and forth.
    text = " ".join(_DUMP.split(str(error)[:_MAX_READ_CHARACTERS], maxsplit=1)[0].split())
    text = _SOURCE_PLACE.sub("", text)
    return text if len(text) <= _MAX_MESSAGE_CHARACTERS else text[: _MAX_MESSAGE_CHARACTERS - 1] + "…"
