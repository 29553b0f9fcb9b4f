"""Request bodies of OpenAI's endpoints: JSON to object, object to struct, fault to error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from openai_bls.api.common.faults import Fault, Tell, converted, decoded
from openai_bls.core.errors import InvalidRequestError

T = TypeVar("T")

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
"""Texts that a client keeps with an object."""

MAX_INPUTS = 2048
"""Maximum texts of a request that is answered by one result for each, as at OpenAI."""

_ANY = msgspec.json.Decoder()


class WithoutEffectOfUser(msgspec.Struct, kw_only=True):
    """Taken without effect by endpoints that generate no text."""

    user: str | None = None


class PromptUsage(msgspec.Struct, frozen=True):
    """Token counts, summed over the inputs; 0 where another model does not tell them."""

    prompt_tokens: int
    total_tokens: int


def fault(what: Fault) -> InvalidRequestError:
    """A fault as an error, with the field's path as OpenAI's `param`."""
    param = what.field
    if what.kind == "unknown":
        return InvalidRequestError(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    if what.kind == "missing":
        return InvalidRequestError(
            f"Missing required parameter: '{param}'", param=param, code="missing_required_parameter"
        )
    message = what.message
    if re.search(r"\.(content|output)\[[^\[\]]*\]\.type$", what.path):
        message += "; there are parts of text and, from users and tools, images"
    where = f" for '{param}'" if param else ""
    return InvalidRequestError(f"Invalid value{where}: {message}.", param=param or None)


def fault_at(at: str) -> Tell:
    """`fault` for a value at path `at` of the body."""
    return lambda what: fault(what.below(at))


def json_object(body: bytes) -> dict[str, Any]:
    """The object that a request body is.

    Raises:
        InvalidRequestError: it is none.
    """
    value = decoded(_ANY, body, fault)
    if not isinstance(value, dict):
        raise InvalidRequestError("The request body must be a JSON object.")
    return value


def convert(body: dict[str, Any], schema: type[T]) -> T:
    """`body` as a `schema`.

    Raises:
        InvalidRequestError: a field is unknown, missing, of the wrong type or out of range; `param` names it.
    """
    return converted(body, schema, fault)


def texts_or_token_ids(value: str | Sequence[str | int | list[int]], field: str) -> tuple[list[str], list[list[int]]]:
    """The four forms of `prompt` and `input`: (texts, []) or ([], rows of token ids), at least one.

    Raises:
        InvalidRequestError: `field` is empty, or mixes kinds.
    """
    if isinstance(value, str):
        return [value], []
    if not value:
        raise InvalidRequestError(f"'{field}' is an empty array.", param=field)
    texts = [item for item in value if isinstance(item, str)]
    ids = [item for item in value if isinstance(item, int)]
    rows = [item for item in value if isinstance(item, list)]
    if len(texts) == len(value):
        return texts, []
    if len(ids) == len(value):
        return [], [ids]
    if len(rows) == len(value):
        return [], rows
    raise InvalidRequestError(
        f"'{field}' mixes kinds: give a string, an array of strings, an array of token ids or an array of such arrays.",
        param=field,
    )


def check_inputs(count: int, field: str) -> None:
    """Refuse a field with no input, or with more than a request may have.

    Args:
        count: inputs of the field.
        field: name of the field.

    Raises:
        InvalidRequestError: there is none, or one too many.
    """
    if not count:
        raise InvalidRequestError(f"'{field}' is an empty array.", param=field)
    if count > MAX_INPUTS:
        raise InvalidRequestError(f"'{field}' has {count} items; at most {MAX_INPUTS} are supported.", param=field)
