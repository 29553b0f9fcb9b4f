"""/v1/embeddings."""

from __future__ import annotations

from typing import Any

from openai_bls.api.endpoint import Smoke, expect, one_shot
from openai_bls.api.tasks.embeddings.schema import EmbeddingsBody
from openai_bls.api.tasks.embeddings.serving import embed
from openai_bls.core.errors import ModelAnswerError


def _check(answer: Any) -> str:
    first, second = (item["embedding"] for item in answer["data"])
    expect(first and len(first) == len(second), f"embeddings of {len(first)} and {len(second)} numbers")
    expect(first != second, "two texts have the same embedding")
    return f"{len(first)} numbers"


ENDPOINTS = (
    one_shot(
        "embeddings",
        embed,
        body=EmbeddingsBody,
        summary="Vectors of texts",
        smoke=Smoke(
            body={"input": ["Hello", "Bonjour"]}, check=_check, optional=True, engines=("generate", "embeddings")
        ),
        errors=frozenset({ModelAnswerError}),
    ),
)
