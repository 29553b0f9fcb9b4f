"""Parser of config.pbtxt: protobuf's text format, as far as Triton's configurations use it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

Message = dict[str, list[Any]]
"""Field → its values in order, each text or a message."""

_TOKEN = re.compile(
    r"""\s*(?:\#[^\n]*(?:\n\s*|$))*              # white space and comments, which end with their line
        (?: (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
          | (?P<word>[\w.+-]+)
          | (?P<sign>[][{}<>:;,])
          | (?P<end>$))""",
    re.VERBOSE,
)
_CLOSING = {"{": "}", "<": ">"}


class ConfigTextError(ValueError):
    """Text that is not in protobuf's text format; the message names the line."""


def read(path: Path) -> Message:
    """The configuration at `path`.

    Raises:
        OSError: it cannot be read.
        ConfigTextError: it is not of that format.
    """
    return parse(path.read_text(encoding="utf-8"))


def parse(text: str) -> Message:
    """Parse `text`.

    Raises:
        ConfigTextError: it is not of that format.
    """
    tokens = _tokens(text)
    position, message = _message(tokens, 0, "")
    assert position == len(tokens)
    return message


def text(message: Message, field: str, default: str = "") -> str:
    """The last value of a field that holds text, as protobuf has it."""
    values = message.get(field, [])
    return values[-1] if values and isinstance(values[-1], str) else default


def parameters(message: Message) -> dict[str, str]:
    """The `parameters` section: key → string_value."""
    found = {}
    for entry in message.get("parameters", []):
        if isinstance(entry, dict):
            for value in entry.get("value", []):
                if isinstance(value, dict):
                    found[text(entry, "key")] = text(value, "string_value")
    return found


def names(message: Message, section: str) -> frozenset[str]:
    """Names of the tensors in the section `input` or `output`."""
    return frozenset(text(entry, "name") for entry in message.get(section, []) if isinstance(entry, dict))


def _tokens(source: str) -> list[tuple[str, str]]:
    """Kind and text of each token; a string's text is its value."""
    tokens: list[tuple[str, str]] = []
    at = 0
    while True:
        match = _TOKEN.match(source, at)
        if match is None:
            line = source.count("\n", 0, at) + 1
            raise ConfigTextError(f"line {line} cannot be read")
        at = match.end()
        kind = str(match.lastgroup)
        if kind == "end":
            return tokens
        value = match[kind]
        tokens.append((kind, _unquoted(value) if kind == "string" else value))


def _unquoted(literal: str) -> str:
    try:
        # Its escapes are a subset of Python's.
        return str(ast.literal_eval(literal))
    except (SyntaxError, ValueError):
        raise ConfigTextError(f"{literal} is not a string") from None


def _message(tokens: list[tuple[str, str]], at: int, closing: str) -> tuple[int, Message]:
    """The fields from `at` on, up to and with `closing`; empty is the end of the text."""
    message: Message = {}
    while True:
        if at == len(tokens):
            if closing:
                raise ConfigTextError(f"a {closing} is missing at the end")
            return at, message
        kind, value = tokens[at]
        if kind == "sign" and value in ",;":
            at += 1
            continue
        if closing and (kind, value) == ("sign", closing):
            return at + 1, message
        if kind != "word":
            raise ConfigTextError(f"{value!r} stands where a field's name should")
        at += 1
        if tokens[at : at + 1] == [("sign", ":")]:
            at += 1
        at, values = _values(tokens, at, value)
        message.setdefault(value, []).extend(values)


def _values(tokens: list[tuple[str, str]], at: int, field: str) -> tuple[int, list[Any]]:
    """The value or the list of values at `at`."""
    if tokens[at : at + 1] != [("sign", "[")]:
        at, value = _value(tokens, at, field)
        return at, [value]
    at += 1
    values = []
    while tokens[at : at + 1] != [("sign", "]")]:
        if tokens[at : at + 1] == [("sign", ",")]:
            at += 1
            continue
        at, value = _value(tokens, at, field)
        values.append(value)
    return at + 1, values


def _value(tokens: list[tuple[str, str]], at: int, field: str) -> tuple[int, str | Message]:
    if at == len(tokens):
        raise ConfigTextError(f"{field} has no value")
    kind, value = tokens[at]
    if kind == "sign":
        if value not in _CLOSING:
            raise ConfigTextError(f"{value!r} stands where the value of {field} should")
        return _message(tokens, at + 1, _CLOSING[value])
    at += 1
    # Strings that follow each other are one.
    while kind == "string" and at < len(tokens) and tokens[at][0] == "string":
        value += tokens[at][1]
        at += 1
    return at, value
