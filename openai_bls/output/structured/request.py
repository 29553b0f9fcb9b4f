"""Request fields of structured output: those of OpenAI, vLLM and SGLang.

Of vLLM's knobs only those are honoured that ask for what is done here anyway: JSON is written on one line as
`json.dumps` writes it, and the grammar library is chosen by what it honours. The others are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import Requested
from openai_bls.output.structured.errors import FormatError, shown
from openai_bls.output.structured.formats import Format, unwrapped

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Of an unknown field, in messages.
_MAX_NAME = 60
_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_KNOBS = (
    "disable_any_whitespace",
    "disable_fallback",
    "disable_additional_properties",
    "whitespace_pattern",
    "backend",
)
_GUIDED = ("json", "regex", "choice", "grammar", "json_object")
# SGLang's fields.
_SGLANG = {"json_schema": "json", "regex": "regex", "ebnf": "grammar"}


def requested(fields: Mapping[str, Any]) -> Requested | None:
    """The format that a request's fields ask for; None if they leave the output free.

    Args:
        fields: the fields of `api.chat.schema.StructuredOutput` as they came; None is not set.

    Raises:
        InvalidRequestError: one of them is malformed or not supported, or two ask at once.
    """
    found = [*_response_format(fields.get("response_format")), *_structured_outputs(fields.get("structured_outputs"))]
    for kind in _GUIDED:
        found += _wanted(kind, fields.get(f"guided_{kind}"), f"guided_{kind}")
    for name, kind in _SGLANG.items():
        found += _wanted(kind, fields.get(name), name)
    _check_backend(fields.get("guided_decoding_backend"), "guided_decoding_backend")
    _check_white_space(fields.get("guided_whitespace_pattern"), "guided_whitespace_pattern")
    if len(found) > 1:
        raise InvalidRequestError(
            f"'{found[0].param}' and '{found[1].param}' each say what the output must match: send one of them.",
            param=found[1].param,
        )
    return found[0] if found else None


def _response_format(value: Any) -> list[Requested]:
    if value is None:
        return []
    fields = _object(value, "response_format")
    match fields.get("type"):
        case "text":
            _only(fields, "response_format", "type")
            return []
        case "json_object":
            _only(fields, "response_format", "type")
            return [Requested(_json(_OBJECT), "response_format")]
        case "json_schema":
            _only(fields, "response_format", "type", "json_schema")
            return [_json_schema(fields.get("json_schema"), "response_format.json_schema")]
        case "structural_tag":
            return [_structural_tag(fields, "response_format")]
        case None:
            raise _missing("response_format.type")
    raise InvalidRequestError(
        f"'response_format.type' {shown(fields['type'])} is not one of text, json_object, json_schema, structural_tag.",
        param="response_format.type",
    )


def _json_schema(value: Any, param: str) -> Requested:
    if value is None:
        raise _missing(param)
    fields = _object(value, param)
    _only(fields, param, "name", "schema", "strict", "description")
    name = fields.get("name")
    if name is None:
        raise _missing(f"{param}.name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"'{param}.name' must be 1 to 64 letters, digits, underscores and dashes, not {shown(name)}.",
            param=f"{param}.name",
        )
    _check_type(fields.get("strict"), bool, f"{param}.strict", "a boolean")
    _check_type(fields.get("description"), str, f"{param}.description", "a string")
    if fields.get("schema") is None:
        raise _missing(f"{param}.schema")
    wanted = _json(_object(fields["schema"], f"{param}.schema"))
    return Requested({**wanted, "strict": True} if fields.get("strict") else wanted, f"{param}.schema")


def _structured_outputs(value: Any) -> list[Requested]:
    if value is None:
        return []
    param = "structured_outputs"
    fields = _object(value, param)
    _only(fields, param, *_KINDS, *_KNOBS)
    _check_type(fields.get("disable_any_whitespace"), bool, f"{param}.disable_any_whitespace", "a boolean")
    _check_type(fields.get("disable_fallback"), bool, f"{param}.disable_fallback", "a boolean")
    _check_backend(fields.get("backend"), f"{param}.backend")
    _check_white_space(fields.get("whitespace_pattern"), f"{param}.whitespace_pattern")
    _check_type(
        fields.get("disable_additional_properties"), bool, f"{param}.disable_additional_properties", "a boolean"
    )
    if fields.get("disable_additional_properties"):
        raise InvalidRequestError(
            f"'{param}.disable_additional_properties' is not supported: set 'additionalProperties': false yourself.",
            param=f"{param}.disable_additional_properties",
        )
    found = [one for kind in _KINDS for one in _wanted(kind, fields.get(kind), f"{param}.{kind}")]
    if not found:
        raise InvalidRequestError(f"'{param}' must have one of {', '.join(_KINDS)}.", param=param)
    return found


def _wanted(kind: str, value: Any, param: str) -> list[Requested]:  # noqa: PLR0911
    """The format that one of vLLM's fields asks for."""
    if value is None:
        return []
    match kind:
        case "json":
            schema = _decoded(value, param)
            if not isinstance(schema, dict | bool):
                raise InvalidRequestError(f"'{param}' must be a JSON schema, not {shown(schema)}.", param=param)
            return [Requested(_json(schema), param)]
        case "json_object":
            _check_type(value, bool, param, "a boolean")
            return [Requested(_json(_OBJECT), param)] if value else []
        case "choice":
            return [Requested(_choice(value, param), param)]
        case "regex":
            return [Requested({"type": "regex", "pattern": _text(value, param)}, param)]
        case "grammar":
            return [Requested({"type": "grammar", "grammar": _text(value, param)}, param)]
    tag = _object(_decoded(value, param), param)
    return [_structural_tag({**tag, "type": tag.get("type", "structural_tag")}, param)]


def _structural_tag(tag: dict[str, Any], param: str) -> Requested:
    """The format that a structural tag holds: on its own it could not be put together with others."""
    try:
        return Requested(unwrapped(tag), param)
    except FormatError as error:
        raise InvalidRequestError(f"'{param}': {error}.", param=param) from None


_OBJECT = {"type": "object"}


def _json(schema: Any) -> Format:
    return {"type": "json_schema", "json_schema": schema}


def _choice(value: Any, param: str) -> Format:
    if not isinstance(value, list) or not value:
        raise InvalidRequestError(
            f"'{param}' must be an array of strings, with something in it, not {shown(value)}.", param=param
        )
    for at, text in enumerate(value):
        _text(text, f"{param}[{at}]")
    return {"type": "or", "elements": [{"type": "const_string", "value": text} for text in dict.fromkeys(value)]}


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequestError(f"'{param}' must be a string with something in it, not {shown(value)}.", param=param)
    return value


def _decoded(value: Any, param: str) -> Any:
    """A JSON value that may come as text."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise InvalidRequestError(f"'{param}' is not JSON text.", param=param) from None


def _object(value: Any, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequestError(f"'{param}' must be an object, not {shown(value)}.", param=param)
    return value


def _only(fields: dict[str, Any], param: str, *known: str) -> None:
    for name in fields:
        if name not in known:
            field = f"{param}.{name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 1] + '…'}"
            raise InvalidRequestError(f"'{field}' is not known: '{param}' takes {', '.join(known)}.", param=field)


def _check_type(value: Any, kind: type, param: str, what: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise InvalidRequestError(f"'{param}' must be {what}, not {shown(value)}.", param=param)


def _check_backend(value: Any, param: str) -> None:
    if value not in (None, "auto"):
        raise InvalidRequestError(
            f"'{param}' {shown(value)} is not supported: the library is chosen by what it honours (\"auto\").",
            param=param,
        )


def _check_white_space(value: Any, param: str) -> None:
    if value is not None:
        raise InvalidRequestError(
            f"'{param}' is not supported: JSON is written on one line, with ', ' and ': '.", param=param
        )


def _missing(param: str) -> InvalidRequestError:
    return InvalidRequestError(f"Missing required parameter: '{param}'.", param=param)
