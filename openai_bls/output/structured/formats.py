"""Formats: checked descriptions of an output, in one form for all fields and libraries.

A `Format` is a JSON object in the vocabulary of structural tags (as in vLLM), `{"type": ..., ...}`:

====================================  =================================================================================
`json_schema`                         JSON text that a schema (`json_schema`) allows, `strict` or not
`regex`                               a text that `pattern` matches as a whole
`grammar`                             a text of the language of `grammar`: GBNF or, standing alone, Lark; within a
                                      tag none of `excludes`; see `gbnf_lark` for `terminals` and `escaped`
`const_string`                        `value`
`any_text`                            anything, but none of the strings in `excludes`
`sequence`, `or`                      all of `elements` in turn, one of them
`optional`, `star`, `plus`, `repeat`  `content` several times (`min` to `max`, -1 for no end)
`tag`                                 `begin`, `content`, `end` (or one of several); text in between ends at `end`
`triggered_tags`                      any text, in which one of `triggers` begins one of `tags`
`tags_with_separator`                 some of `tags` with `separator` in between
====================================  =================================================================================

Formats about single tokens of a vocabulary are refused. Of the styles of a `json_schema` (`style`) there are
`qwen_xml`, `glm_xml`, `hy_xml`, `minicpm_xml`, `minimax_xml` and `deepseek_xml` for JSON written as XML, `pythonic` for
keyword arguments, and `gemma4` and `functiongemma` for JSON whose strings stand between delimiters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from openai_bls.output.structured import patterns
from openai_bls.output.structured.errors import FormatError, shown
from openai_bls.output.structured.grammars import gbnf
from openai_bls.output.structured.libraries.lark_arguments import STYLES
from openai_bls.output.structured.schemas import schema

Format = dict[str, Any]

_MAX_ELEMENTS = 4_096
_MAX_REPEATS = 1_000
# Triggers times their tags and the characters of what is excluded: each trigger ends a free text without all of these.
_MAX_TRIGGERED = 256 * 1024
# What models write a tool call's arguments in.
_STYLES = ("json", *STYLES)


def checked(wanted: Any) -> Format:
    """A format with every `json_schema` in the form of `schema`, every `pattern` checked.

    Args:
        wanted: format of the client, whose nesting is bounded already.

    Raises:
        FormatError: it is none, or has what cannot be honoured.
    """
    node = _of_known_type(wanted)
    return {"type": node["type"], **_CHECKS[node["type"]](node)}


def unwrapped(wanted: Any) -> Any:
    """The format that a structural tag holds, in its newer or its older form; any other as it is.

    Raises:
        FormatError: it is of neither form, or holds no format of a known type.
    """
    if not isinstance(wanted, dict) or wanted.get("type", "structural_tag") != "structural_tag":
        return wanted
    rest = {key: value for key, value in wanted.items() if key != "type"}
    if set(rest) == {"format"}:
        return _of_known_type(rest["format"])
    if set(rest) != {"structures", "triggers"}:
        raise FormatError("a structural tag has either 'format', or 'structures' and 'triggers'")
    structures = rest["structures"]
    if not isinstance(structures, list) or not all(isinstance(part, dict) for part in structures):
        raise FormatError("'structures' must be an array of objects with 'begin', 'schema' and 'end'")
    tags = []
    for part in structures:
        if not set(part) <= {"begin", "schema", "end"} or "begin" not in part or "end" not in part:
            raise FormatError(f"a structure has 'begin', 'schema' and 'end', not {shown(sorted(part))}")
        schema_of = part.get("schema")
        content = {"type": "json_schema", "json_schema": True if schema_of is None else schema_of}
        tags.append({"type": "tag", "begin": part["begin"], "content": content, "end": part["end"]})
    return {"type": "triggered_tags", "triggers": rest["triggers"], "tags": tags}


def _of_known_type(wanted: Any) -> Format:
    if not isinstance(wanted, dict) or not isinstance(wanted.get("type"), str):
        raise FormatError(f"a format is an object with a 'type', not {shown(wanted)}")
    if wanted["type"] not in _CHECKS:
        raise FormatError(f"formats of type {shown(wanted['type'])} are not supported: use {', '.join(_CHECKS)}")
    return wanted


def _json_schema(node: Format) -> Format:
    _only(node, "json_schema", "style", "strict", "any_order", "max_whitespace_cnt", "excludes")
    if "json_schema" not in node:
        raise FormatError("a 'json_schema' format needs a 'json_schema'")
    style = node.get("style", "json")
    if style not in _STYLES or node.get("any_order") or node.get("excludes"):
        raise FormatError(
            f"'json_schema' formats are supported with a 'style' of {', '.join(_STYLES)} "
            "and without 'any_order' and 'excludes'"
        )
    found = {"json_schema": schema.checked(node["json_schema"], strict=node.get("strict") is True)}
    return found if style == "json" else {**found, "style": style}


def _regex(node: Format) -> Format:
    _only(node, "pattern")
    pattern = _string(node, "pattern")
    if not patterns.full(pattern):
        raise FormatError("the regular expression matches nothing but the empty text")
    return {"pattern": pattern}


def _grammar(node: Format) -> Format:
    _only(node, "grammar", "excludes", "terminals", "escaped")
    text = _string(node, "grammar")
    if gbnf.is_lark(text):
        raise FormatError("a Lark grammar cannot be a part of another format: write it as GBNF")
    gbnf.parse(text)
    found: Format = {"grammar": text}
    if node.get("excludes"):
        found["excludes"] = _strings(node, "excludes")
    return found | {key: True for key in ("terminals", "escaped") if node.get(key) is True}


def _any_text(node: Format) -> Format:
    _only(node, "excludes", "max_tokens", "max_chars")
    if node.get("max_tokens") is not None or node.get("max_chars") is not None:
        raise FormatError("'any_text' formats are supported without 'max_tokens' and 'max_chars'")
    if not node.get("excludes"):
        return {}
    return {"excludes": _strings(node, "excludes")}


def _elements(node: Format) -> Format:
    _only(node, "elements")
    return {"elements": [checked(part) for part in _list(node, "elements")]}


def _content(node: Format) -> Format:
    _only(node, "content")
    return {"content": checked(node.get("content"))}


def _repeat(node: Format) -> Format:
    _only(node, "content", "min", "max")
    least, most = (
        value if isinstance(value, int) and not isinstance(value, bool) and value <= _MAX_REPEATS else -2
        for value in (node.get("min"), node.get("max"))
    )
    if -2 in (least, most):
        raise FormatError(f"'min' and 'max' of a 'repeat' format must be integers up to {_MAX_REPEATS}")
    if least < 0 or (most != -1 and most < least) or most == 0:
        raise FormatError("'min' and 'max' of a 'repeat' format must be in order, and 'max' above 0, or -1 for no end")
    return {"content": checked(node.get("content")), "min": least, "max": most}


def _tag(node: Format) -> Format:
    _only(node, "begin", "content", "end")
    end = node.get("end")
    ends = end if isinstance(end, list) else [end]
    if not isinstance(node.get("begin"), str) or not ends or not all(isinstance(text, str) for text in ends):
        raise FormatError("a tag needs 'begin', a string, and 'end', a string or an array of strings")
    content = checked(node.get("content"))
    if content["type"] in ("any_text", "triggered_tags") and not all(ends):
        raise FormatError("a tag with free text needs an 'end'")
    return {"begin": node["begin"], "content": content, "end": end}


def _tags(node: Format) -> list[Format]:
    tags = _list(node, "tags")
    return [checked(tag if not isinstance(tag, dict) else {"type": "tag", **tag}) for tag in tags]


def _triggered_tags(node: Format) -> Format:
    _only(node, "triggers", "tags", "at_least_one", "stop_after_first", "excludes")
    triggers = _strings(node, "triggers")
    excludes = _strings(node, "excludes") if node.get("excludes") else []
    if len(triggers) * (len(_list(node, "tags")) + sum(map(len, excludes))) > _MAX_TRIGGERED:
        raise FormatError("'triggers' are too many together with 'tags' and 'excludes'")
    tags = _tags(node)
    for tag in tags:
        if tag["type"] != "tag":
            raise FormatError("'tags' must be tags")
        if sum(tag["begin"].startswith(trigger) for trigger in triggers) != 1:
            raise FormatError(f"'begin' {shown(tag['begin'])} of a tag must begin with exactly one of 'triggers'")
    found = {"triggers": triggers, "tags": tags} | _flags(node)
    return {**found, "excludes": excludes} if excludes else found


def _tags_with_separator(node: Format) -> Format:
    _only(node, "tags", "separator", "at_least_one", "stop_after_first")
    if not isinstance(node.get("separator"), str):
        raise FormatError("'tags_with_separator' needs a 'separator', a string")
    tags = _tags(node)
    if any(tag["type"] != "tag" for tag in tags):
        raise FormatError("'tags' must be tags")
    return {"tags": tags, "separator": node["separator"]} | _flags(node)


def _const_string(node: Format) -> Format:
    _only(node, "value")
    return {"value": _string(node, "value")}


def _flags(node: Mapping[str, Any]) -> Format:
    found = {}
    for key in ("at_least_one", "stop_after_first"):
        value = node.get(key, False)
        if not isinstance(value, bool):
            raise FormatError(f"'{key}' must be a boolean, not {shown(value)}")
        if value:
            found[key] = value
    return found


def _only(node: Format, *known: str) -> None:
    unknown = [key for key in node if key not in known and key != "type"]
    if unknown:
        raise FormatError(f"a '{node['type']}' format has no {shown(unknown[0])}")


def _string(node: Format, key: str) -> str:
    value = node.get(key)
    if not isinstance(value, str) or not value:
        raise FormatError(
            f"'{key}' of a '{node['type']}' format must be a string with something in it, not {shown(value)}"
        )
    return value


def _list(node: Format, key: str) -> list[Any]:
    value = node.get(key)
    if not isinstance(value, list) or not value:
        raise FormatError(
            f"'{key}' of a '{node['type']}' format must be an array with something in it, not {shown(value)}"
        )
    if len(value) > _MAX_ELEMENTS:
        raise FormatError(f"'{key}' of a '{node['type']}' format has over {_MAX_ELEMENTS} elements")
    return value


def _strings(node: Format, key: str) -> list[str]:
    value = _list(node, key)
    if not all(isinstance(text, str) and text for text in value):
        raise FormatError(f"'{key}' of a '{node['type']}' format must be an array of strings with something in them")
    return value


_CHECKS: dict[str, Callable[[Format], Format]] = {
    "json_schema": _json_schema,
    "regex": _regex,
    "grammar": _grammar,
    "const_string": _const_string,
    "any_text": _any_text,
    "sequence": _elements,
    "or": _elements,
    "optional": _content,
    "star": _content,
    "plus": _content,
    "repeat": _repeat,
    "tag": _tag,
    "triggered_tags": _triggered_tags,
    "tags_with_separator": _tags_with_separator,
}
