from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from openai.types import ModerationCreateResponse

from openai_bls.api.common.bodies import MAX_INPUTS
from openai_bls.transport.model_calls import Array, Arrays
from tests.unit.api.http_support import asked, refused
from tests.unit.core_support import Bench
from tests.unit.pipeline.task_models.task_support import model, tensor

PATH = "/v1/moderations"


def anger(inputs: Mapping[str, Array]) -> Arrays:
    """Scores by the shares of ! and of digits."""
    texts = inputs["text"][:, 0]
    scores = [[text.count(b"!") / len(text), sum(48 <= code < 58 for code in text) / len(text)] for text in texts]
    return {"scores": np.array(scores, np.float32), "labels": np.array([[b"violence", b"\xff"]] * len(texts), object)}


def make_bench(**changes: Any) -> Bench:
    bench = Bench()
    labels = {"openai_labels": "violence, spam", **changes}
    bench.service.models.tasks.replace([model("classify", "moderator", **labels)])
    bench.model_calls.models["moderator"] = anger
    return bench


def answer_of(bench: Bench, given: Any) -> Any:
    answered = asked(bench, PATH, {"input": given})
    assert answered.status == 200
    return answered.json()


def result(violence: float, spam: float) -> dict[str, Any]:
    """Scores, and classes at the threshold of a half."""
    return {
        "flagged": max(violence, spam) >= 0.5,
        "categories": {"violence": violence >= 0.5, "spam": spam >= 0.5},
        "category_scores": {"violence": violence, "spam": spam},
        "category_applied_input_types": {"violence": ["text"], "spam": ["text"]},
    }


def test_classes_with_their_scores() -> None:
    bench = make_bench()
    answer = answer_of(bench, ["a!!!", "1b", "abc"])
    assert answer.pop("id").startswith("modr-")
    assert answer == {"model": "moderator", "results": [result(0.75, 0.0), result(0.0, 0.5), result(0.0, 0.0)]}
    (record,) = bench.records
    assert (record.endpoint, record.model, record.outcome) == ("moderations", "moderator", "done")


def test_the_sdk_reads_it_and_keeps_further_classes() -> None:
    parsed = ModerationCreateResponse.construct(**answer_of(make_bench(), [{"type": "text", "text": "a!!!"}]))
    (result,) = parsed.results
    assert (result.flagged, result.categories.violence, result.category_scores.violence) == (True, True, 0.75)
    assert (result.categories.model_extra or {})["spam"] is False


def test_the_threshold_and_the_names_are_the_models() -> None:
    (result,) = answer_of(make_bench(openai_threshold="0.8"), "a!!!")["results"]
    assert (result["flagged"], result["categories"]) == (False, {"violence": False, "spam": False})
    outputs = [tensor("scores", "TYPE_FP32", [-1]), tensor("labels", dims=[-1])]
    (result,) = answer_of(make_bench(output=outputs, openai_labels=None), "a!!!")["results"]
    # Bytes that are no text come as the sign for them.
    assert result["category_scores"] == {"violence": 0.75, "\ufffd": 0.0}


def test_more_scores_than_names() -> None:
    bench = make_bench(output=[tensor("scores", "TYPE_FP32", [-1])], openai_labels="one")
    assert refused(bench, PATH, {"input": "x"}) == (502, None, "bad_model_answer")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"input": []}, 400, "input"),
        ({"input": ["x"] * (MAX_INPUTS + 1)}, 400, "input"),
        ({"input": [{"type": "text", "text": "x"}] * 2}, 400, "input"),
        ({"input": [{"type": "text", "text": "x"}, "y"]}, 400, "input"),
        ({"input": [{"type": "image_url", "image_url": {"url": "x"}}]}, 400, "input[0].type"),
        # A model of OpenAI's name is not made up.
        ({"input": "x", "model": "omni-moderation-latest"}, 404, "model"),
    ],
)
def test_refusals(body: dict[str, Any], status: int, param: str) -> None:
    assert refused(make_bench(), PATH, body)[:2] == (status, param)
