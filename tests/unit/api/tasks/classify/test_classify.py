"""Classes and rewards of texts, token ids and conversations, by an engine or by another Triton model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.common.bodies import MAX_INPUTS
from tests.unit.api.http_support import asked, refused
from tests.unit.api.tasks.test_engines_that_pool import answered, bench_of, length
from tests.unit.core_support import Bench, token_ids
from tests.unit.pipeline.task_models.task_support import model

PATH = "/v1/classify"
USER = {"role": "user", "content": "hi"}
scores = st.floats(-100, 100)


def bench_of_scores(task: str = "classify", **changes: Any) -> Bench:
    return bench_of(task, supported=("pooling", "use_activation"), **changes)


def bench_of_task(**changes: Any) -> Bench:
    bench = Bench()
    bench.service.models.tasks.replace([model("classify", "judge", openai_labels="fine, toxic", **changes)])
    bench.model_calls.models["judge"] = lambda inputs: {
        "scores": np.array([[0.25, len(text[0])] for text in inputs["text"]], np.float32)
    }
    return bench


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(scores, min_size=3, max_size=3), min_size=1, max_size=5), st.sampled_from([PATH, "/classify"]))
def test_classes_are_as_vllm_gives_them(rows: list[list[float]], path: str) -> None:
    names = ("fine", "toxic", "spam")
    texts = ["x" * (index + 1) for index in range(len(rows))]
    bench = bench_of_scores(labels=names)
    answer = answered(bench, path, {"input": texts}, lambda request: rows[len(request.prompt_token_ids) - 1])
    assert answer.pop("id").startswith("classify-")
    assert answer.pop("created") > 0
    tokens = sum(map(len, texts))
    assert answer == {
        "object": "list",
        "model": "tiny",
        "data": [
            {"index": index, "label": names[int(np.argmax(row))], "probs": row, "num_classes": 3}
            for index, row in enumerate(rows)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    (record,) = bench.records
    assert (record.endpoint, record.outcome, record.usage.prompt_tokens) == ("classify", "done", tokens)


def test_a_reward_before_its_activation() -> None:
    bench = bench_of_scores("reward")
    answer = answered(bench, PATH, {"input": token_ids("hi"), "use_activation": False}, length)
    assert answer["data"] == [{"index": 0, "label": None, "probs": [2.0], "num_classes": 1}]
    (request,) = bench.engine.requests
    assert (request.pooling, request.use_activation, request.prompt_token_ids) == ("classify", False, token_ids("hi"))


def test_a_conversation_is_rendered_without_a_turn_to_generate() -> None:
    bench = bench_of_scores("reward")
    assert answered(bench, PATH, {"messages": [USER]}, length)["data"][0]["num_classes"] == 1
    (prompt,) = bench.prompts.requests
    assert prompt.messages == [USER]
    assert prompt.chat_template_kwargs["add_generation_prompt"] is False


def test_another_triton_model_classifies() -> None:
    bench = bench_of_task()
    answer = asked(bench, PATH, {"input": ["ab", "c"]}).json()
    assert [(one["label"], one["probs"], one["num_classes"]) for one in answer["data"]] == [
        ("toxic", [0.25, 2.0], 2),
        ("toxic", [0.25, 1.0], 2),
    ]
    assert answer["model"] == "judge"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": [1, 2]}, "input"),
        ({"messages": [USER]}, "messages"),
        ({"input": "x", "use_activation": False}, "use_activation"),
        ({"input": "x", "add_special_tokens": False}, "add_special_tokens"),
        ({"input": "x", "priority": 1}, "priority"),
    ],
)
def test_what_another_triton_model_cannot_is_refused(body: dict[str, Any], param: str) -> None:
    assert refused(bench_of_task(), PATH, body)[:2] == (400, param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": ["x", 1]}, "input"),
        ({"input": ["x"] * (MAX_INPUTS + 1)}, "input"),
        ({"input": "x", "messages": [USER]}, "input"),
        ({"input": "x", "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [USER], "chat_template": "{{ messages }}"}, "chat_template"),
        ({"input": "x", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        ({"input": "x", "use_activation": "no"}, "use_activation"),
    ],
)
def test_refusals(body: dict[str, Any], param: str) -> None:
    assert refused(bench_of_scores(), PATH, body)[:2] == (400, param)


@pytest.mark.parametrize("numbers", [[], [0.5]])
def test_another_number_of_scores_is_the_models_fault(numbers: list[float]) -> None:
    bench = bench_of_scores(labels=("a", "b"))
    found = asked(bench, PATH, {"input": "x"}, lambda: bench.engine.deliver(0, [], "stop", embedding=numbers))
    assert (found.status, found.json()["error"]["code"]) == (502, "bad_model_answer")


def test_an_engine_that_generates_is_told_how_to_get_one() -> None:
    found = asked(Bench(), PATH, {"input": "x"})
    assert found.status == 404
    assert "build --task classify" in found.json()["error"]["message"]
    assert refused(Bench(), PATH, {"input": "x", "model": "tiny"}) == (400, "model", "unsupported_endpoint")
