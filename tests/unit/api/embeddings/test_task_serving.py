from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
import numpy as np
import pytest

from openai_bls.api.common.encoding import encode
from openai_bls.api.embeddings.serving import embed
from openai_bls.core.errors import ApiError
from tests.unit.core_support import Bench, engine_info, request_context
from tests.unit.task_support import model, tensor

IDS = tensor("token_ids", "TYPE_INT64", [-1], optional=True)
VECTOR = [0.0, 3.0, 4.0, 12.0]


def bench_of(*, counts: bool = False, name: str = "vectors", no_engine: bool = False, **changes: Any) -> Bench:
    """A service with an embedding model that answers VECTOR to everything."""
    bench = Bench(engine_info(supported=frozenset()) if no_engine else None)
    outputs = [tensor("embedding", "TYPE_FP32", [4])] + [tensor("prompt_tokens", "TYPE_INT32")] * counts
    bench.service.models.tasks.replace([model("embeddings", name, output=outputs, **changes)])
    bench.model_calls.models[name] = lambda inputs: {
        "embedding": np.tile(np.array(VECTOR, np.float32), (len(next(iter(inputs.values()))), 1)),
        "prompt_tokens": np.full((len(next(iter(inputs.values()))), 1), 7, np.int32),
    }
    return bench


def answer_of(bench: Bench, **body: Any) -> Any:
    return msgspec.json.decode(encode(asyncio.run(embed(bench.service, request_context("embeddings"), body))))


def refused(bench: Bench, **body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        asyncio.run(embed(bench.service, request_context("embeddings"), body))
    assert bench.service.in_progress == 0
    return caught.value


def test_texts() -> None:
    bench = bench_of(counts=True)
    assert answer_of(bench, model="vectors", input=["a", "bc"], user="u") == {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": VECTOR} for index in (0, 1)],
        "model": "vectors",
        "usage": {"prompt_tokens": 14, "total_tokens": 14},
    }
    (record,) = bench.records
    assert (record.endpoint, record.model, record.outcome) == ("embeddings", "vectors", "done")
    assert record.usage.prompt_tokens == 14
    assert bench.busy == [1, 0]


def test_token_ids_are_counted_and_texts_are_not_guessed() -> None:
    bench = bench_of(input=[tensor("text", optional=True), IDS])
    assert answer_of(bench, model="vectors", input=[[1, 2, 3], [4]])["usage"]["prompt_tokens"] == 4
    assert answer_of(bench, model="vectors", input="abc")["usage"]["prompt_tokens"] == 0


def test_base64() -> None:
    answer = answer_of(bench_of(), model="vectors", input="a", encoding_format="base64")
    raw = base64.b64decode(answer["data"][0]["embedding"], validate=True)
    assert np.frombuffer(raw, "<f4").tolist() == VECTOR


def test_dimensions() -> None:
    cut = bench_of(openai_dimensions="matryoshka")
    assert answer_of(cut, model="vectors", input="a", dimensions=3)["data"][0]["embedding"] == pytest.approx(
        [0.0, 0.6, 0.8]
    )
    assert answer_of(cut, model="vectors", input="a", dimensions=1)["data"][0]["embedding"] == [0.0]
    error = refused(cut, model="vectors", input="a", dimensions=5)
    assert error.message.endswith("have 4. It may be left out, or be at most 4.")
    fixed = bench_of()
    assert answer_of(fixed, model="vectors", input="a", dimensions=4)["data"][0]["embedding"] == VECTOR
    error = refused(fixed, model="vectors", input="a", dimensions=3)
    assert (error.status, error.param, error.code) == (400, "dimensions", "unsupported_parameter")
    assert "have 4 and cannot be shortened" in error.message


@pytest.mark.parametrize(
    ("body", "changes", "param", "sentence"),
    [
        ({"pooling": "mean"}, {}, "pooling", "the model pools as it was made to"),
        ({"add_special_tokens": False}, {}, "add_special_tokens", "the model tokenizes as it was made to"),
        ({"input": [1, 2]}, {}, "input", "takes text, no token ids"),
        ({"input": "a"}, {"input": [IDS]}, "input", "takes token ids, no text"),
        ({"input": ["a", ""]}, {}, "input", "an empty string"),
        ({"input": [[1], []]}, {"input": [IDS]}, "input", "an empty string or array"),
    ],
)
def test_refusals(body: dict[str, Any], changes: dict[str, Any], param: str, sentence: str) -> None:
    error = refused(bench_of(**changes), model="vectors", **{"input": "a", **body})
    assert (error.status, error.param) == (400, param)
    assert sentence in error.message


def test_the_engine_is_the_default_where_it_has_embeddings() -> None:
    bench = bench_of(no_engine=True)
    assert answer_of(bench, input="a")["model"] == "vectors"
    # Named, it is meant.
    assert "has no embeddings" in refused(bench, model="tiny", input="a").message
    bench.service.models.tasks.replace([])
    assert "has no embeddings" in refused(bench, input="a").message
    assert refused(bench, model="nope", input="a").message.endswith("served here: tiny, openai_bls.")


def test_an_engine_keeps_its_name() -> None:
    bench = bench_of(name="openai_bls", no_engine=True)
    assert "has no embeddings" in refused(bench, model="openai_bls", input="a").message


def test_a_model_of_another_task() -> None:
    bench = bench_of()
    bench.service.models.tasks.replace([model("rerank", "ranks"), model("embeddings", "broken", output=[])])
    assert "scores documents against a query: use /v1/rerank" in refused(bench, model="ranks", input="a").message
    assert refused(bench, model="broken", input="a").status == 503


@pytest.mark.parametrize(
    ("outputs", "sentence"),
    [
        ({"embedding": np.ones((2, 7), np.float32)}, "'embedding' with 7 numbers per input, 4 in its configuration"),
        ({"prompt_tokens": np.array([[3], [-1]], np.int32)}, "'prompt_tokens' below 0"),
    ],
)
def test_an_answer_that_is_not_what_the_model_declares_is_its_fault(outputs: dict[str, Any], sentence: str) -> None:
    bench = bench_of(counts=True)
    counted = {"prompt_tokens": np.full((2, 1), 7, np.int32)}
    bench.model_calls.models["vectors"] = lambda _: {
        "embedding": np.ones((2, 4), np.float32),
        **counted,
        **outputs,
    }
    error = refused(bench, model="vectors", input=["a", "b"])
    assert (error.status, error.code) == (502, "bad_model_answer")
    assert error.message == f"The model 'vectors' answered with {sentence}."
