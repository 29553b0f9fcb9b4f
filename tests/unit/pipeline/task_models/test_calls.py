from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from openai_bls.core.errors import ApiError
from openai_bls.pipeline.task_models.calls import CALLS_AT_ONCE, TaskCall, integer_rows, text_rows
from openai_bls.pipeline.task_models.registry import TaskModel
from openai_bls.transport.model_calls import Array, Arrays, ModelCallError, ModelUnavailableError
from tests.fakes.model_calls import FakeModelCalls
from tests.unit.pipeline.task_models.task_support import model, tensor

pytestmark = pytest.mark.anyio

FP32 = "TYPE_FP32"
SCORE = np.zeros((1, 1), np.float32)


def lengths(inputs: Mapping[str, Array]) -> Arrays:
    """An embedding model that gives the length of each text or row of ids, and of the batch."""
    (array,) = inputs.values()
    count = len(array)
    sizes = [sum(len(item) if isinstance(item, bytes) else 1 for item in row.reshape(-1)) for row in array]
    return {
        "embedding": np.array([[size, count] for size in sizes], np.float32),
        "prompt_tokens": np.array(sizes, np.int32).reshape(count, 1),
    }


def counting(**changes: Any) -> TaskModel:
    outputs = [tensor("embedding", FP32, [2]), tensor("prompt_tokens", "TYPE_INT32")]
    return model("embeddings", output=outputs, **changes)


async def test_batches_of_the_size_that_the_model_takes() -> None:
    calls = FakeModelCalls()
    calls.models["other"] = lengths
    call = TaskCall(calls, counting(max_batch_size=3), 10.0)
    outputs = await call.run({"text": text_rows("x" * number for number in range(1, 8))})
    assert [row.tolist() for row in outputs["embedding"]] == [[n, 3 if n < 7 else 1] for n in range(1, 8)]
    assert call.prompt_tokens == 28
    assert [inputs["text"].shape for _, inputs in calls.called] == [(3, 1), (3, 1), (1, 1)]
    assert calls.called[0][1]["text"].tolist() == [[b"x"], [b"xx"], [b"xxx"]]


async def test_rows_of_other_lengths_are_other_calls() -> None:
    """Token ids are not padded: the model has no mask to tell padding from tokens."""
    calls = FakeModelCalls()
    calls.models["other"] = lengths
    other = counting(input=[tensor("token_ids", "TYPE_INT32", [-1])])
    outputs = await TaskCall(calls, other, 10.0).run({"token_ids": integer_rows([[1, 2], [3], [4, 5]])})
    assert [row.tolist() for row in outputs["embedding"]] == [[2, 2], [1, 1], [2, 2]]
    first, second = (inputs["token_ids"] for _, inputs in calls.called)
    assert (first.tolist(), second.tolist()) == ([[1, 2], [4, 5]], [[3]])
    assert first.dtype == second.dtype == np.int32


@pytest.mark.parametrize(("dims", "shape"), [([1], (1,)), ([-1], (1,)), ([1, -1], (1, 1))])
async def test_a_model_without_batches_is_called_for_each(dims: list[int], shape: tuple[int, ...]) -> None:
    calls = FakeModelCalls()
    calls.models["other"] = lambda inputs: {"embedding": np.ones((1, 4), np.float32) * len(inputs["text"].flat[0])}
    other = model("embeddings", max_batch_size=0, input=[tensor("text", dims=dims)])
    outputs = await TaskCall(calls, other, 10.0).run({"text": text_rows(["a", "bc"])})
    assert [row.tolist() for row in outputs["embedding"]] == [[1] * 4, [2] * 4]
    assert [inputs["text"].shape for _, inputs in calls.called] == [shape, shape]


async def test_embeddings_of_one_request_have_one_size() -> None:
    calls = FakeModelCalls()
    calls.models["other"] = lambda inputs: {"embedding": np.ones((1, len(inputs["text"].flat[0])), np.float32)}
    other = model("embeddings", max_batch_size=1, output=[tensor("embedding", "TYPE_FP32", [-1])])
    message = "The model 'other' answered with embeddings of 1 and of 2 numbers."
    with pytest.raises(ApiError) as raised:
        await TaskCall(calls, other, 10.0).run({"text": text_rows(["a", "bc"])})
    assert (raised.value.status, raised.value.message) == (502, message)


async def test_only_a_few_calls_at_once() -> None:
    running: list[int] = []
    calls = FakeModelCalls()

    async def answer(inputs: Mapping[str, Array]) -> Arrays:
        running.append((len(running) and running[-1] + 1) or 1)
        for _ in range(3):
            await asyncio.sleep(0)
        running.append(running[-1] - 1)
        return {"embedding": np.zeros((1, 4), np.float32)}

    calls.models["other"] = answer
    await TaskCall(calls, model("embeddings", max_batch_size=1), 10.0).run({"text": text_rows("abcdefghij")})
    assert max(running) == CALLS_AT_ONCE
    assert len(calls.called) == 10


async def failure(calls: FakeModelCalls, other: TaskModel, timeout_s: float = 10.0) -> tuple[int, str | None, str]:
    with pytest.raises(ApiError) as info:
        await TaskCall(calls, other, timeout_s).run({role: text_rows(["x", "y"]) for role in other.inputs})
    return info.value.status, info.value.code, info.value.message


@pytest.mark.parametrize("own", [False, True])
async def test_a_model_that_hangs_meets_the_deadline(own: bool) -> None:
    calls = FakeModelCalls()
    begun, gone = [], []

    async def hang(inputs: Mapping[str, Array]) -> Arrays:
        begun.append(1)
        try:
            await asyncio.Event().wait()
        finally:
            gone.append(1)
        raise AssertionError

    calls.models["other"] = hang
    other = model("rerank", max_batch_size=1, **({"openai_timeout_s": "0.01"} if own else {}))
    assert await failure(calls, other, 3600.0 if own else 0.01) == (
        504,
        "timeout",
        "The model 'other' has not answered within 0.01 s.",
    )
    # Nobody waits for the rest.
    while gone != begun:
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            ModelUnavailableError("is not ready"),
            (503, "model_unavailable", "The model 'other' is not loaded (any more)."),
        ),
        (ModelCallError("text too long"), (500, None, "The model 'other' failed: text too long")),
        # An exception's own words may be anything, a path for example.
        (
            ModelCallError("Failed to process the request(s) for model 'other', message: KeyError: '/secret'"),
            (500, None, "The model 'other' failed; see the server's log."),
        ),
    ],
)
async def test_failures(error: ModelCallError, expected: tuple[int, str | None, str]) -> None:
    calls = FakeModelCalls()

    def fail(inputs: Mapping[str, Array]) -> Arrays:
        raise error

    calls.models["other"] = fail
    assert await failure(calls, model("rerank", max_batch_size=1)) == expected


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 1), np.float32),
        np.zeros((2, 1), np.float64),
        np.zeros((2, 2), np.float32),
        np.array(0.5, np.float32),
        np.array([[0.5], [np.nan]], np.float32),
    ],
)
async def test_answers_that_are_not_what_was_declared(array: Array) -> None:
    calls = FakeModelCalls()
    calls.models["other"] = lambda inputs: {"score": array}
    status, code, message = await failure(calls, model("rerank"))
    assert (status, code) == (502, "bad_model_answer")
    assert message.startswith("The model 'other' answered with 'score' ")
