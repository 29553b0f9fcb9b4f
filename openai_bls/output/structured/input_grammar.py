"""Grammars of custom tools' input as formats, plain and as the content of a JSON string."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from openai_bls.core.request import ToolGrammar
from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.formats import Format
from openai_bls.output.structured.grammars import gbnf, lark_nodes, regex_nodes
from openai_bls.output.structured.grammars.gbnf import Node
from openai_bls.output.structured.grammars.json_escape import escaped
from openai_bls.output.structured.grammars.pruning import pruned
from openai_bls.output.structured.libraries import gbnf_lark, gbnf_text

_START = lark_nodes.START


def plain(grammar: ToolGrammar, excludes: Sequence[str]) -> Format:
    """The texts of a grammar, without those that hold one of `excludes`.

    Raises:
        FormatError: it is no grammar, nothing matches it, or it has what is not supported.
    """
    text = _found(_plain(grammar.syntax, grammar.definition))
    return {"type": "grammar", "grammar": text, "terminals": True, "excludes": [*excludes]}


def in_json(grammar: ToolGrammar, excludes: Sequence[str] = ()) -> Format:
    """The texts of a grammar as they stand in a JSON string, without those that hold one of `excludes`.

    Raises:
        FormatError: it is no grammar, nothing matches it, or it has what is not supported.
    """
    # In a recursive grammar what is excluded is kept out by escapes of its first characters.
    first = "".join(sorted({text[0] for text in excludes}))
    text = _found(_escaped(grammar.syntax, grammar.definition, first))
    found: Format = {"type": "grammar", "grammar": text, "terminals": True, "escaped": True}
    return {**found, "excludes": [*excludes]} if excludes else found


def _found(source: str | FormatError) -> str:
    if isinstance(source, FormatError):
        raise FormatError(str(source))
    return source


@lru_cache(maxsize=32)
def _plain(syntax: str, definition: str) -> str | FormatError:
    """The grammar as GBNF, or why there is none, which may take as long to find out."""
    try:
        return _written(_rules(syntax, definition))
    except FormatError as error:
        return error


@lru_cache(maxsize=32)
def _escaped(syntax: str, definition: str, first: str) -> str | FormatError:
    try:
        rules = _rules(syntax, definition)
        text = _written(escaped(rules, controls=True))
        if gbnf_lark.regex(text) is not None:
            return text
        return _written(escaped(rules, controls=False, also=first))
    except FormatError as error:
        return error


def _rules(syntax: str, definition: str) -> dict[str, Node]:
    if syntax == "regex":
        return {_START: regex_nodes.parse(definition)}
    return lark_nodes.parse(definition)


def _written(rules: dict[str, Node]) -> str:
    kept = pruned(rules, _START)
    if not kept:
        raise FormatError("nothing matches the grammar")
    text = gbnf_text.written(kept, _START, lark_nodes.is_terminal)
    gbnf.parse(text)
    return text
