from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from openai.types import ModerationCreateResponse

from openai_bls.api.common.encoding import encode
from openai_bls.api.moderations.schema import MAX_INPUTS
from openai_bls.api.moderations.serving import moderate
from openai_bls.core.errors import ApiError
from openai_bls.transport.model_calls import Array, Arrays
from tests.unit.core_support import Bench, request_context
from tests.unit.task_support import model, tensor


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


def answer_of(bench: Bench, **body: Any) -> Any:
    return msgspec.json.decode(encode(asyncio.run(moderate(bench.service, request_context("moderations"), body))))


def refused(bench: Bench, **body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        answer_of(bench, **body)
    assert bench.service.in_progress == 0
    return caught.value


def test_classes_with_their_scores() -> None:
    bench = make_bench()
    answer = answer_of(bench, input=["a!!!", "1b"])
    assert answer.pop("id").startswith("modr-")
    applied = {"violence": ["text"], "spam": ["text"]}
    assert answer == {
        "model": "moderator",
        "results": [
            {
                "flagged": True,
                "categories": {"violence": True, "spam": False},
                "category_scores": {"violence": 0.75, "spam": 0.0},
                "category_applied_input_types": applied,
            },
            {
                "flagged": True,
                # At the threshold.
                "categories": {"violence": False, "spam": True},
                "category_scores": {"violence": 0.0, "spam": 0.5},
                "category_applied_input_types": applied,
            },
        ],
    }
    (record,) = bench.records
    assert (record.endpoint, record.model, record.outcome) == ("moderations", "moderator", "done")


def test_the_sdk_reads_it_and_keeps_further_classes() -> None:
    answer = answer_of(make_bench(), input=[{"type": "text", "text": "a!!!"}])
    parsed = ModerationCreateResponse.construct(**answer)
    (result,) = parsed.results
    assert (result.flagged, result.categories.violence, result.category_scores.violence) == (True, True, 0.75)
    assert (result.categories.model_extra or {})["spam"] is False


def test_the_threshold_is_the_models() -> None:
    (result,) = answer_of(make_bench(openai_threshold="0.8"), input="a!!!")["results"]
    assert (result["flagged"], result["categories"]) == (False, {"violence": False, "spam": False})


def test_names_from_an_output() -> None:
    outputs = [tensor("scores", "TYPE_FP32", [-1]), tensor("labels", dims=[-1])]
    (result,) = answer_of(make_bench(output=outputs, openai_labels=None), input="a!!!")["results"]
    # Bytes that are no text come as the sign for them.
    assert result["category_scores"] == {"violence": 0.75, "\ufffd": 0.0}


def test_more_scores_than_names() -> None:
    outputs = [tensor("scores", "TYPE_FP32", [-1])]
    error = refused(make_bench(output=outputs, openai_labels="one"), input="x")
    assert (error.status, error.message) == (502, "The model 'moderator' answered with 2 scores for 1 classes.")


@pytest.mark.parametrize(
    ("given", "param", "sentence"),
    [
        ([], "input", "'input' is an empty array"),
        (["x"] * (MAX_INPUTS + 1), "input", "at most 2048"),
        ([{"type": "text", "text": "x"}] * 2, "input", "has several parts"),
        ([{"type": "text", "text": "x"}, "y"], "input", "has several parts"),
        ([{"type": "image_url", "image_url": {"url": "x"}}], "input[0].type", "image_url"),
    ],
)
def test_refusals(given: Any, param: str, sentence: str) -> None:
    error = refused(make_bench(), input=given)
    assert (error.status, error.param) == (400, param)
    assert sentence in error.message


def test_a_model_of_openais_name_is_not_made_up() -> None:
    assert refused(make_bench(), input="x", model="omni-moderation-latest").status == 404
