"""Which library enforces a format: one that honours all of it, or none does and the client is told why."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any

import msgspec

from openai_bls.core.engine_types import Grammar
from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.structured import ebnf, ebnf_forms, intersections, larks, rendering
from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.formats import Checked, Format, checked, unwrapped
from openai_bls.output.structured.gbnf import gbnf, is_grammar, with_grammars

_MAX_BYTES = 256 * 1024
_MAX_DEPTH = 100
_MAX_MESSAGE = 300
# llguidance's own limit lets schemas pass that take it seconds, and more memory than is good.
_MAX_SYMBOLS = 20_000

_KIND_NAMES = {
    "json_schema": "JSON schemas",
    "regex": "regular expressions",
    "ebnf": "GBNF grammars",
    "structural_tag": "structural tags",
    "lark": "Lark grammars",
}


def grammar(format: Format, *, backend: str, param: str, kinds: Collection[str] = ()) -> Grammar:  # noqa: A002
    """The grammar for a format, in the form of a library that honours all of it: xgrammar where it does, as it is
    quicker to compile for a large vocabulary, else llguidance.

    Takes a millisecond or so, a tenth of one for each property of a large schema, and next to nothing for a format
    that came lately.

    Args:
        format: what the output must match.
        backend: the engine's, `EngineInfo.grammar_backend`.
        param: the request's field that it comes from.
        kinds: the engine's, `EngineInfo.grammar_kinds`.

    Raises:
        InvalidRequestError: it is malformed, nothing would match it, or no backend honours all of it.
    """
    try:
        found = _cached(_text(format), backend, tuple(kinds))
    except FormatError as error:
        found = str(error)
    if isinstance(found, str):
        raise InvalidRequestError(f"'{param}': {found}.", param=param)
    return found


@lru_cache(maxsize=64)
def _cached(text: str, backend: str, kinds: tuple[str, ...]) -> Grammar | str:
    """The grammar, or why there is none, which may take as long to find out."""
    try:
        return _grammar(text, backend, kinds)
    except FormatError as error:
        return str(error)
    except RecursionError:  # whose depth is bounded by everything above, as far as is known
        return "it is nested too deeply"


def _text(wanted: Any) -> str:
    _bound(wanted)
    try:
        text = msgspec.json.encode(wanted)
    except (TypeError, ValueError, OverflowError):  # half a surrogate pair in a string, for one
        raise FormatError("it holds what is not JSON") from None
    if len(text) > _MAX_BYTES:
        raise FormatError(f"it is too large: {len(text)} bytes of JSON, {_MAX_BYTES} at most")
    return text.decode()


def _bound(wanted: Any) -> None:
    """Refuse what is nested too deeply for the recursive functions to come."""
    level: list[Any] = [wanted]
    for _ in range(_MAX_DEPTH):
        level = [
            part
            for node in level
            if isinstance(node, dict | list)
            for part in (node.values() if isinstance(node, dict) else node)
            if isinstance(part, dict | list)
        ]
        if not level:
            return
    raise FormatError(f"it is nested too deeply: over {_MAX_DEPTH} levels")


def _grammar(text: str, backend: str, kinds: tuple[str, ...]) -> Grammar:
    if not backend:
        raise FormatError("this server's engine has no grammars: llguidance is not installed there")
    wanted = unwrapped(msgspec.json.decode(text))
    if isinstance(wanted, dict) and wanted.get("type") == "grammar" and set(wanted) == {"type", "grammar"}:
        source = wanted["grammar"]
        if isinstance(source, str) and source and ebnf.is_lark(source):
            return _of_kind(_lark(source, backend), kinds, backend)
    found = checked(wanted)
    if backend == "xgrammar" and found.beyond_xgrammar is None:
        _validate(found)
        return _of_kind(_xgrammar(found), kinds, backend, found.format)
    if found.beyond_xgrammar is not None and found.needs_xgrammar is not None:
        raise FormatError(f"{found.beyond_xgrammar} cannot be enforced beside {found.needs_xgrammar}")
    if found.needs_xgrammar is not None:
        raise FormatError(f"{found.needs_xgrammar} takes xgrammar, which this server's engine does not have")
    if backend == "llguidance":
        return _of_kind(_llguidance(found), kinds, backend, found.format)
    raise FormatError(
        f"{found.beyond_xgrammar} cannot be enforced here: it would take llguidance, "
        "which this server's engine does not have"
    )


def _of_kind(made: Grammar, kinds: tuple[str, ...], backend: str, plain: Format | None = None) -> Grammar:
    """`made` of the format `plain` as a grammar of one of `kinds`, if there are any, where that is the same.

    An xgrammar without structural tags gets everything as GBNF: up to 0.1.19 clients could end its process by a regular
    expression or a grammar of their own, and its JSON strings may hold what JSON does not. The embedded engine's gets
    the parts of tags so. An engine without structural tags gets no Lark grammar in the place of one either: what tags
    are for are markers such as <tool_call>, often tokens of their own, and a Lark grammar that spells them as text
    loops or fails there.
    """
    if backend == "xgrammar" and plain is not None:
        if not kinds:
            return _of_current(plain)
        if "ebnf" in kinds and "structural_tag" not in kinds:
            return Grammar("ebnf", gbnf(plain))
        if "ebnf" in kinds and is_grammar(plain):
            # Versions in between: what GBNF for all of them cannot say is theirs to read.
            with contextlib.suppress(FormatError):
                return Grammar("ebnf", gbnf(plain))
    needed = made.kind
    if plain is not None and made.kind == "lark" and plain["type"] != "grammar":
        needed = "structural_tag"
    if not kinds or needed in kinds:
        return made
    if needed == "structural_tag" and "regex" in kinds and plain is not None:
        words = _words(plain)
        if words is not None:
            return Grammar("regex", "|".join(f"({_escaped(word)})" for word in words))
    has = ", ".join(_KIND_NAMES[kind] for kind in kinds)
    raise FormatError(f"it takes {_KIND_NAMES[needed]}, which this server's engine does not have: it has {has}")


def _of_current(plain: Format) -> Grammar:
    """For the embedded engine's own xgrammar."""
    if is_grammar(plain):
        return Grammar("ebnf", gbnf(plain, current=True))
    return Grammar("structural_tag", _dumped({"type": "structural_tag", "format": with_grammars(plain)}))


def _words(plain: Format) -> list[str] | None:
    """The strings that a format is a choice of; None if it is no choice."""
    parts = plain["elements"] if plain["type"] == "or" else [plain]
    if any(part["type"] != "const_string" for part in parts):
        return None
    words = [part["value"] for part in parts]
    # No regular expression of xgrammar's may hold it.
    return None if any("\x00" in word for word in words) else words


def _escaped(word: str) -> str:
    """A regular expression for `word`. re.escape also writes backslashes before what has no need of them, a space say,
    which not every library takes."""
    return (
        re.sub(r"[\\^$.|?*+()\[\]{}/-]", r"\\\g<0>", word)
        .replace("\n", r"\n")
        .replace("\t", r"\t")
        .replace("\r", r"\r")
    )


def _xgrammar(found: Checked) -> Grammar:
    plain = found.format
    match plain["type"]:
        case "json_schema" if "style" not in plain:
            return Grammar("json_schema", _dumped(plain["json_schema"]))
        case "regex":
            return Grammar("regex", plain["pattern"])
        case "grammar":
            return Grammar("ebnf", plain["grammar"])
    return Grammar("structural_tag", _dumped({"type": "structural_tag", "format": plain}))


def _llguidance(found: Checked) -> Grammar:
    plain = found.format
    for schema in _schemas(plain):
        intersections.check(schema)
    match plain["type"]:
        case "json_schema":
            made = Grammar("json_schema", rendering.json_schema(plain["json_schema"]))
        case "regex":
            made = Grammar("regex", plain["pattern"])
        case "grammar":
            made = Grammar("lark", ebnf_forms.lark(ebnf.parse(plain["grammar"])))
        case _:
            made = Grammar("lark", rendering.lark(plain))
    _validate_text(made)
    return made


def _lark(source: str, backend: str) -> Grammar:
    if backend != "llguidance":
        raise FormatError("a Lark grammar takes llguidance, which this server's engine does not have: write it as GBNF")
    larks.check(source)
    made = Grammar("lark", source)
    _validate_text(made)
    return made


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _validate(found: Checked) -> None:
    """Let llguidance look at the schemas for xgrammar, too: it sees what has no instance."""
    for schema in _schemas(found.format):
        intersections.check(schema)
        _validate_text(Grammar("json_schema", rendering.json_schema(schema)))


def _schemas(node: Any) -> list[Any]:
    if isinstance(node, list):
        return [schema for part in node for schema in _schemas(part)]
    if not isinstance(node, dict):
        return []
    if node.get("type") == "json_schema":
        return [node["json_schema"]]
    return [schema for part in node.values() for schema in _schemas(part)]


def _validate_text(made: Grammar) -> None:
    try:
        from llguidance import LLMatcher, LLParserLimits
    except ImportError:  # the engine's process may have it even so, and looks itself
        return
    match made.kind:
        case "json_schema":
            text = LLMatcher.grammar_from_json_schema(made.text)
        case "regex":
            text = LLMatcher.grammar_from_regex(made.text)
        case _:
            text = LLMatcher.grammar_from_lark(made.text)
    limits = LLParserLimits(max_grammar_size=_MAX_SYMBOLS, verbose_errors=False)
    _, messages = LLMatcher.validate_grammar_with_warnings(text, limits=limits)
    if messages:
        raise FormatError(_plain(messages[0]))


def _plain(message: str) -> str:
    """llguidance's message for a client's eyes."""
    if "oneOf constraints are not supported" in message:
        return "'oneOf' cannot be enforced where its alternatives may overlap: use 'anyOf'"
    if "Unable to determine if regex is empty" in message:
        return "its patterns and lengths are too much together for one string: use fewer of them at once"
    if "too big" in message:
        return "it is too large, or combines too many alternatives"
    text = " ".join(message.split("<backtrace>", 1)[0].split())
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 1] + "…"
