"""Selection of the grammar for a format: one that the engine's library enforces in full, or a refusal."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from openai_bls.core.engine_types import EngineInfo, Grammar
from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.structured import patterns
from openai_bls.output.structured.errors import FormatError, cut
from openai_bls.output.structured.formats import Format, checked, unwrapped
from openai_bls.output.structured.grammars import bounds, gbnf
from openai_bls.output.structured.libraries import gbnf_lark, guidance, guided_decoding, lark, lark_rules
from openai_bls.output.structured.libraries.guided_decoding import Target

_MAX_BYTES = 256 * 1024
_MAX_DEPTH = 100
_MAX_MESSAGE = 300
# llguidance's own limit lets schemas pass that take it seconds, and more memory than is good.
_MAX_SYMBOLS = 20_000


def grammar(format: Format, info: EngineInfo, *, param: str) -> Grammar:  # noqa: A002
    """The grammar for a format. Takes milliseconds, for a large schema more; next to nothing for a recent one.

    Args:
        format: format of the output.
        info: facts of the engine.
        param: the request's field that it comes from.

    Raises:
        InvalidRequestError: it is malformed, nothing would match it, or the engine's library does not honour all of it.
    """
    target = None if info.grammar_dialect == "llguidance" else Target.of(info)
    try:
        if not info.grammar_backend:
            raise FormatError("this server's engine has no grammars")
        found = _cached(_text(format), target)
    except FormatError as error:
        found = str(error)
    if isinstance(found, str):
        raise InvalidRequestError(f"'{param}': {found}.", param=param)
    return found


def has_structural_tags(info: EngineInfo) -> bool:
    """True if an engine's grammars may have free text around the constrained part."""
    return bool(info.grammar_backend) and (
        info.grammar_dialect != "guided_decoding" or "structural_tag" in info.grammar_kinds
    )


def has_style(info: EngineInfo, style: str) -> bool:
    """True if an engine's grammars may have JSON in a style of `formats`."""
    return style == "json" or info.grammar_dialect != "guided_decoding" or style in guided_decoding.STYLES


def has_excludes(info: EngineInfo) -> bool:
    """True if free text of an engine's grammars can be without certain strings."""
    return info.grammar_dialect != "guided_decoding" or Target.of(info).version >= guided_decoding.EXCLUDES_SINCE


@lru_cache(maxsize=64)
def _cached(text: str, target: Target | None) -> Grammar | str:
    """The grammar, or why there is none, which may take as long to find out."""
    try:
        return _grammar(unwrapped(msgspec.json.decode(text)), target)
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


def _grammar(wanted: Any, target: Target | None) -> Grammar:
    if isinstance(wanted, dict) and wanted.get("type") == "grammar" and set(wanted) == {"type", "grammar"}:
        source = wanted["grammar"]
        if isinstance(source, str) and source and gbnf.is_lark(source):
            bounds.check_lark(source)
            if target is not None and target.dialect == "guided_decoding":
                return guided_decoding.lark_source(source, target)
            return _validated(Grammar("lark", source))
    found = checked(wanted)
    if target is not None and target.dialect == "guided_decoding":
        return guided_decoding.grammar(found, target)
    if target is not None:
        guidance.check(found)
    made = _llguidance(found, {})
    if made.kind == "lark":
        bounds.check_rules(made.text)
    made = _validated(made)
    if target is not None and target.markers and made.kind == "lark":
        # Ids of tokens cannot be validated without the tokenizer; the rest is the same.
        return _llguidance(found, dict(target.markers))
    return made


def _llguidance(found: Format, markers: dict[str, int]) -> Grammar:
    """Grammar of llguidance for a format, as the embedded engine and vLLM take it."""
    match found["type"]:
        case "json_schema" if "style" not in found:
            return Grammar("json_schema", lark_rules.json_schema(found["json_schema"]))
        case "regex":
            return Grammar("regex", patterns.full(found["pattern"]))
        case "grammar" if set(found) == {"type", "grammar"}:
            return Grammar("lark", gbnf_lark.lark(gbnf.parse(found["grammar"])))
    return Grammar("lark", lark.lark(found, markers))


def _validated(made: Grammar) -> Grammar:
    """`made`, unless llguidance refuses it, as it would in the engine's process."""
    try:
        from llguidance import LLMatcher, LLParserLimits
    except ImportError:  # the engine's process looks itself
        return made
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
    return made


def _plain(message: str) -> str:
    """llguidance's message for a client's eyes."""
    if "oneOf constraints are not supported" in message:
        return "'oneOf' cannot be enforced where its alternatives may overlap: use 'anyOf'"
    if "Unable to determine if regex is empty" in message:
        return "its patterns and lengths are too much together for one string: use fewer of them at once"
    if "too big" in message:
        return "it is too large, or combines too many alternatives"
    return cut(" ".join(message.split("<backtrace>", 1)[0].split()), _MAX_MESSAGE)
