"""Body and answer of /v1/moderations.

Source: the OpenAI API reference. The categories are the called model's own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from openai_bls.api.common.bodies import MAX_INPUTS, check_inputs, convert
from openai_bls.api.common.documented import limits
from openai_bls.core.errors import InvalidRequestError


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text among the parts of one input."""

    type: Literal["text"]
    text: str


class ModerationsBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/moderations."""

    input: str | Annotated[list[str | TextPart], limits(minItems=1, maxItems=MAX_INPUTS)]
    """A string, up to 2,048 strings, or one part of type text. Images are refused."""
    model: str | None = None
    """May be left out where there is one model."""


class Moderation(msgspec.Struct, frozen=True):
    """One text's classes."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[str]]


class ModerationsAnswer(msgspec.Struct, frozen=True):
    """The classes, in the order of the texts."""

    id: str
    model: str
    results: list[Moderation]


def parse_moderations(body: dict[str, Any]) -> tuple[ModerationsBody, list[str]]:
    """A valid request with its texts.

    Raises:
        InvalidRequestError: `param` names the field at fault.
    """
    request = convert(body, ModerationsBody)
    if isinstance(request.input, str):
        return request, [request.input]
    check_inputs(len(request.input), "input")
    texts = [item for item in request.input if isinstance(item, str)]
    parts = [item for item in request.input if isinstance(item, TextPart)]
    if parts and (texts or len(parts) > 1):
        # They are the parts of one input, which a model that takes one text has no place for.
        raise InvalidRequestError(
            "'input' has several parts: give a string, an array of strings, or one part of type text.", param="input"
        )
    return request, texts or [parts[0].text]
