"""Prompts that vLLM pools into numbers, over a client that does what the test says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.engine_types import EngineInfo, GenerationRequest
from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.capabilities import ENGINE_FAILED, refusal
from openai_bls_vllm import pooling
from openai_bls_vllm.engine import Opened, VllmEngine
from openai_bls_vllm.pooling import Task
from tests.engine_contract.support import Recorder
from tests_vllm.engine.vllm_support import INFO, CoreOutput, ScriptedClient, asked

EMBEDS = msgspec.structs.replace(
    INFO, task="embeddings", supported=("pooling", "dimensions"), embedding_size=8, matryoshka_dimensions=(2, 4)
)
SCORES = msgspec.structs.replace(INFO, task="score", supported=("pooling", "compressed_token_type_ids"))

Started = tuple[VllmEngine, Recorder, ScriptedClient]


def pooled(way: Any = "embed", **changes: Any) -> GenerationRequest:
    return asked(max_tokens=0, pooling=way, **changes)


@pytest.fixture
def started(checkpoint: Path) -> Iterator[Started]:
    clients: list[ScriptedClient] = []

    def open_client() -> Opened:
        clients.append(ScriptedClient())
        clients[0].tasks = ("embed", "token_embed")
        return Opened(clients[0], EMBEDS, task="embed")

    recorder = Recorder()
    engine = VllmEngine(open_client, recorder, checkpoint=checkpoint)
    yield engine, recorder, clients[0]
    engine.close()
    assert recorder.breaches == []


def test_numbers_of_a_prompt_come_in_one_delta(started: Started) -> None:
    engine, recorder, client = started
    engine.submit(pooled(dimensions=4))
    (one,) = client.wait_started(1)
    assert one.pooling
    assert one.params == {"task": "embed", "dimensions": 4}
    client.step(CoreOutput(one.request_id, [], finish_reason="stop", pooling_output=torch.tensor([0.5, -1.0])))
    recorder.wait_end(1)
    (delta,) = [delta for step in recorder.steps for delta in step]
    assert (delta.embedding, delta.token_ids, delta.finish_reason) == ([0.5, -1.0], [], "stop")
    assert engine.stats().generated_tokens == 0


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_an_error(started: Started, number: float) -> None:
    engine, recorder, client = started
    engine.submit(pooled())
    (one,) = client.wait_started(1)
    client.step(CoreOutput(one.request_id, [], finish_reason="stop", pooling_output=torch.tensor([0.5, number])))
    recorder.wait_end(1)
    assert recorder.reason(1) == "error"


@pytest.mark.parametrize(("reason", "output"), [("abort", torch.zeros(2)), ("error", None), ("stop", None)])
def test_a_prompt_that_vllm_gives_up_is_the_engines_fault(started: Started, reason: str, output: Any) -> None:
    engine, recorder, client = started
    engine.submit(pooled())
    (one,) = client.wait_started(1)
    client.step(CoreOutput(one.request_id, [], finish_reason=reason, pooling_output=output))
    recorder.wait_end(1)
    (delta,) = [delta for step in recorder.steps for delta in step]
    assert (delta.error, delta.invalid) == (ENGINE_FAILED, False)


def test_a_model_that_is_not_for_the_task_is_not_served(checkpoint: Path) -> None:
    client: list[ScriptedClient] = []

    def open_client() -> Opened:
        client.append(ScriptedClient())
        client[0].tasks = ("embed",)
        return Opened(client[0], SCORES, task="score")

    with pytest.raises(EngineLoadError, match="--task"):
        VllmEngine(open_client, Recorder(), checkpoint=checkpoint)
    assert client[0].shut_down


@given(dimensions=st.integers(-3, 12), sizes=st.sets(st.integers(1, 8)))
def test_a_size_is_one_of_the_models_or_refused(dimensions: int, sizes: set[int]) -> None:
    info = msgspec.structs.replace(EMBEDS, matryoshka_dimensions=tuple(sorted(sizes)))
    allowed = sizes or range(1, 9)
    found = refusal(pooled(dimensions=dimensions), info)
    assert (found is None) == (dimensions in allowed)
    assert found is None or found.startswith("dimensions")


@given(begins=st.integers(-2, 6))
def test_token_types_begin_in_the_prompt(begins: int) -> None:
    request = pooled("classify", compressed_token_type_ids=begins)
    found = refusal(request, SCORES)
    length = len(request.prompt_token_ids)
    assert (found is None) == (0 <= begins <= length)
    if found is None:
        extra = pooling.pooling_params(request).get("extra_kwargs")
        # Behind the prompt there is no second text.
        assert extra == ({"compressed_token_type_ids": begins} if begins < length else None)


@pytest.mark.parametrize(
    ("request_", "info", "field"),
    [
        (asked(), EMBEDS, "generates nothing"),
        (asked(max_tokens=0), EMBEDS, "generates nothing"),
        (pooled("last"), EMBEDS, "pooling"),
        (pooled("classify"), EMBEDS, "pooling"),
        (pooled("embed"), SCORES, "pooling"),
        (pooled("embed"), msgspec.structs.replace(INFO, supported=("pooling",)), "pooling"),
        (pooled("classify", dimensions=2), SCORES, "dimensions"),
        (msgspec.structs.replace(pooled(), max_tokens=1), EMBEDS, "pooling"),
    ],
)
def test_what_an_engine_does_not_do_is_refused(request_: GenerationRequest, info: EngineInfo, field: str) -> None:
    assert field in str(refusal(request_, info))


def test_what_vllm_tells_of_a_model() -> None:
    hf_config = SimpleNamespace(id2label={"2": "toxic", "10": "spam", 0: "fine"}, type_vocab_size=2)
    config = SimpleNamespace(hf_config=hf_config, embedding_size=8, is_matryoshka=True, matryoshka_dimensions=[2, 4])
    found = {task: pooling.facts(task, config) for task in get_args(Task)}
    assert found["generate"] == {}
    assert found["embed"] == {
        "task": "embeddings",
        "supported": ("pooling", "dimensions"),
        "embedding_size": 8,
        "matryoshka_dimensions": (2, 4),
    }
    scores = ("pooling", "use_activation", "compressed_token_type_ids")
    assert found["score"] == {"task": "score", "supported": scores}
    for task in ("classify", "reward"):
        assert found[task] == {"task": task, "supported": scores, "labels": ("fine", "toxic", "spam")}
    config.is_matryoshka = False
    assert pooling.facts("embed", config)["supported"] == ("pooling",)
    # As RoBERTa's.
    hf_config.type_vocab_size = 1
    assert pooling.facts("score", config)["supported"] == ("pooling", "use_activation")


def test_arguments() -> None:
    assert pooling.engine_args("generate") == {}
    assert pooling.engine_args("embed") == {"runner": "pooling", "convert": "embed"}
    for task in ("score", "classify", "reward"):
        assert pooling.engine_args(task) == {"runner": "pooling", "convert": "classify"}


@pytest.mark.parametrize("given_", [None, True, False])
def test_the_activation_is_passed_on_where_it_is_given(given_: bool | None) -> None:
    request = pooled("classify", use_activation=given_)
    assert refusal(request, msgspec.structs.replace(SCORES, supported=("pooling", "use_activation"))) is None
    assert pooling.pooling_params(request).get("use_activation") is given_
    assert (refusal(request, SCORES) is None) == (given_ is None)
