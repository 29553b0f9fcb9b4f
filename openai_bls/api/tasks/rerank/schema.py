"""Bodies and answers of /v1/rerank and /v1/score.

Sources: the rerank APIs of Jina and Cohere, which vLLM serves as one; /score is vLLM's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from openai_bls.api.chat.schema import PositiveInt
from openai_bls.api.common.bodies import MAX_INPUTS, PromptUsage, WithoutEffectOfUser, check_inputs, convert
from openai_bls.api.common.documented import limits
from openai_bls.core.errors import InvalidRequestError


class DocumentObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document as an object; `text` is its only field that a model sees."""

    text: str


Texts = Annotated[list[str], limits(minItems=1, maxItems=MAX_INPUTS)]
Documents = Annotated[list[str | DocumentObject], limits(minItems=1, maxItems=MAX_INPUTS)]


class RerankBody(WithoutEffectOfUser, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/rerank."""

    query: str
    """Question that the documents are to answer."""
    documents: Documents
    """Up to 2,048 strings or objects with `text` alone."""
    model: str | None = None
    """May be left out where there is one model."""
    top_n: PositiveInt | None = None
    """The best so many; without it all."""
    return_documents: bool | None = None
    """Texts in the answer, unless false."""


class ScoreBody(WithoutEffectOfUser, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/score: one text and one, one and many, or pairs."""

    text_1: str | Texts | None = None
    """A string or up to 2,048; one against any number, or equally many."""
    text_2: str | Texts | None = None
    """A string or up to 2,048; one against any number, or equally many."""
    queries: str | Texts | None = None
    """Another name of `text_1`."""
    documents: str | Documents | None = None
    """Another name of `text_2`, which takes objects with `text` alone as well."""
    model: str | None = None
    """May be left out where there is one model."""


class RerankResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """One document's score."""

    index: int
    relevance_score: float
    document: DocumentObject | None = None


class RerankAnswer(msgspec.Struct, frozen=True):
    """The documents, the most relevant first."""

    id: str
    model: str
    results: list[RerankResult]
    usage: PromptUsage


class Score(msgspec.Struct, frozen=True):
    """One pair's score."""

    index: int
    object: Literal["score"]
    score: float


class ScoreAnswer(msgspec.Struct, frozen=True):
    """The scores, in the order of the pairs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: PromptUsage


class Pairs(NamedTuple):
    """Pairs of texts, as two lists of equal lengths, and the fields that they come from."""

    first_name: str
    first: Sequence[str]
    second_name: str
    second: Sequence[str]


def parse_rerank(body: dict[str, Any]) -> tuple[RerankBody, list[str]]:
    """A valid request with its documents' texts.

    Raises:
        InvalidRequestError: `param` names the field at fault.
    """
    request = convert(body, RerankBody)
    check_inputs(len(request.documents), "documents")
    return request, _texts(request.documents)


def parse_score(body: dict[str, Any]) -> tuple[ScoreBody, Pairs]:
    """A valid request with its pairs.

    Raises:
        InvalidRequestError: `param` names the field at fault.
    """
    request = convert(body, ScoreBody)
    first_name, first = _either("text_1", request.text_1, "queries", request.queries)
    second_name, second = _either("text_2", request.text_2, "documents", request.documents)
    check_inputs(len(first), first_name)
    check_inputs(len(second), second_name)
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise InvalidRequestError(
            f"'{first_name}' has {len(first)} texts and '{second_name}' {len(second)}: one and any number, or equally "
            "many, are supported.",
            param=second_name,
        )
    return request, Pairs(first_name, first, second_name, second)


def _texts(documents: Sequence[str | DocumentObject]) -> list[str]:
    return [document if isinstance(document, str) else document.text for document in documents]


def _either(
    name: str,
    value: str | Sequence[str | DocumentObject] | None,
    other_name: str,
    other: str | Sequence[str | DocumentObject] | None,
) -> tuple[str, list[str]]:
    """The field that was given, with its texts."""
    if value is not None and other is not None:
        raise InvalidRequestError(f"Give '{name}' or '{other_name}', not both.", param=other_name)
    if value is None and other is None:
        raise InvalidRequestError(
            f"Missing required parameter: '{name}' (or '{other_name}')", param=name, code="missing_required_parameter"
        )
    name, given = (name, value) if value is not None else (other_name, other)
    return name, [given] if isinstance(given, str) else _texts(given or [])
