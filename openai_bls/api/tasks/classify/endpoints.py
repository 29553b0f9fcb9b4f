"""/classify: under /v1, and where vLLM has it."""

from __future__ import annotations

from typing import Any

from openai_bls.api.endpoint import Smoke, expect, one_shot
from openai_bls.api.tasks.classify.schema import ClassifyBody
from openai_bls.api.tasks.classify.serving import classify
from openai_bls.core.errors import ModelAnswerError


def _check(answer: Any) -> str:
    first, second = answer["data"]
    sizes = {len(first["probs"]), len(second["probs"]), first["num_classes"], second["num_classes"]}
    expect(len(sizes) == 1, f"numbers of classes {sizes}")
    return ", ".join(f"{value:.3f}" for value in first["probs"])


ENDPOINTS = (
    one_shot(
        "classify",
        classify,
        body=ClassifyBody,
        summary="Probabilities of classes, or rewards",
        paths=("/v1/classify", "/classify"),
        smoke=Smoke(body={"input": ["Hello", "Bonjour"]}, check=_check, tasks=("classify", "reward")),
        errors=frozenset({ModelAnswerError}),
    ),
)
