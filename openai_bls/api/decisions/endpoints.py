"""/v1/decisions: answers with probabilities, from a model that generates."""

from __future__ import annotations

from typing import Any

from openai_bls.api.decisions.schema import OPTIONAL_TAGS, DecisionsBody
from openai_bls.api.decisions.serving import decide
from openai_bls.api.endpoint import Smoke, expect, one_shot


def _check(answer: Any) -> str:
    (choice,) = answer["answers"]
    chances = [one["probability"] for one in choice["probabilities"]]
    expect(len(chances) == 2 and abs(sum(chances) - 1) < 1e-6, f"probabilities {chances}")
    return f"{choice['choice']!r} with {max(chances):.3f}"


_QUESTION = {
    "type": "choice",
    "name": "kind",
    "instructions": "What is it?",
    "choices": [{"value": "fruit"}, {"value": "city", "description": "a place where people live"}],
}

ENDPOINTS = (
    one_shot(
        "decisions",
        decide,
        body=DecisionsBody,
        summary="Questions about an input, answered with probabilities",
        smoke=Smoke(body={"input": "A pear", "questions": [_QUESTION]}, check=_check, optional=True),
        optional_tags=OPTIONAL_TAGS,
    ),
)
