"""Python's literals as JSON: strings without prefixes, numbers, `True`, `False`, `None`, lists, dicts with strings as
keys; JSON itself is one of them."""

from __future__ import annotations

import json
import re

from openai_bls.output.tool_parsers.scanner import (
    SPACE,
    CharReader,
    MalformedError,
    Reader,
    after_space,
    expect,
    string,
)

_LITERALS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_CLOSING = {"[": "]", "{": "}"}
CODES = {"x": 2, "u": 4, "U": 8}
"""Digits of Python's escapes by their first character."""


def as_json(text: str) -> str | None:
    """A literal as JSON; None if the text is none."""
    out: list[str] = []
    reader = value(text[:1], out, [])
    end = len(text)
    try:
        next(reader)
        for at in range(1, end + 1):
            reader.send(text[at] if at < end else ",")
    except StopIteration:
        return "".join(out) if at == end else None
    except MalformedError:
        pass
    return None


def value(char: str, out: list[str], scalar: list[str]) -> CharReader:
    """Read a value as JSON; return the next character that is not white space.

    Args:
        char: its first character.
        out: the JSON is added to it.
        scalar: holds a number or a name that is not complete.
    """
    # The brackets that are open, each as what closes it.
    open_: list[str] = []
    while True:
        if char in _CLOSING:
            open_.append(_CLOSING[char])
            out.append(char)
            char = yield from after_space()
            if char != open_[-1]:
                char = yield from _member(char, open_[-1], out)
                continue
        elif char in "'\"":
            yield from _string(char, out)
            char = yield from after_space()
        else:
            char = yield from _word(char, out, scalar)
        while open_:
            comma = char == ","
            if comma:
                char = yield from after_space()
            if char == open_[-1]:
                out.append(open_.pop())
                char = yield from after_space()
                continue
            expect("," if comma else char, ",")
            out.append(", ")
            char = yield from _member(char, open_[-1], out)
            break
        else:
            return char


def _member(char: str, closing: str, out: list[str]) -> CharReader:
    """Read a dict's next key; return the first character of a value."""
    if closing == "]":
        return char
    if char not in "'\"":
        raise MalformedError
    yield from _string(char, out)
    expect((yield from after_space()), ":")
    out.append(": ")
    return (yield from after_space())


def _string(quote: str, out: list[str]) -> Reader:
    out.append('"')
    yield from string(lambda char: out.append(json.dumps(char, ensure_ascii=False)[1:-1]), quote, CODES)
    out.append('"')


def _word(char: str, out: list[str], scalar: list[str]) -> CharReader:
    """Read a number or a name with a value."""
    while char.isalnum() or char in "+-._":
        scalar.append(char)
        char = yield
    word = "".join(scalar)
    scalar.clear()
    out.append(_as_json(word))
    return (yield from after_space()) if char in SPACE else char


def _as_json(word: str) -> str:
    if word in _LITERALS or _JSON_NUMBER.fullmatch(word):
        return _LITERALS.get(word, word)
    for read in (lambda: int(word, 0), lambda: float(word)):
        try:
            return json.dumps(read(), allow_nan=False)
        except ValueError:
            pass
    raise MalformedError
