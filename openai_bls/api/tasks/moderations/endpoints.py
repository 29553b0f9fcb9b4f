"""/v1/moderations."""

from __future__ import annotations

from typing import Any

from openai_bls.api.endpoint import Smoke, expect, one_shot
from openai_bls.api.tasks.moderations.schema import ModerationsBody
from openai_bls.api.tasks.moderations.serving import moderate
from openai_bls.core.errors import ModelAnswerError


def _check(answer: Any) -> str:
    (result,) = answer["results"]
    expect(result["categories"].keys() == result["category_scores"].keys(), "scores and categories differ")
    return ", ".join(f"{name} {value:.3f}" for name, value in result["category_scores"].items())


ENDPOINTS = (
    one_shot(
        "moderations",
        moderate,
        body=ModerationsBody,
        summary="Classes of texts",
        smoke=Smoke(body={"input": "Hello"}, check=_check, tasks=("classify",)),
        errors=frozenset({ModelAnswerError}),
    ),
)
