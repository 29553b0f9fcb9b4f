"""The GPU's attention, step runner and batching on a CPU: kernels are replaced by plain PyTorch, all else is real."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers.generation.continuous_batching import input_outputs

from openai_bls.core.engine_types import Logprobs, SamplingParams
from openai_bls.core.manifest import EngineLoadError
from openai_bls_transformers import gpu
from openai_bls_transformers.engine import engine as embedded_engine
from openai_bls_transformers.gpu import paged_attention, varlen_attention
from openai_bls_transformers.model import fused_layers
from openai_bls_transformers.runners import continuous_batching, preparation
from openai_bls_transformers.runners.cuda_graph_runner import CudaGraphRunner, ladder, padded
from openai_bls_transformers.runners.runner_choice import RunnerChoice
from tests.engine_contract.support import Recorder, request
from tests_transformers.engine.engine.test_engine import COUNT, PROMPTS, expected, generate, model, run_all
from tests_transformers.engine.gpu import reference_kernels
from tests_transformers.engine.model.test_fused_layers import kernels
from tests_transformers.engine.overlapping import overlap

if TYPE_CHECKING:
    from openai_bls.core.engine import Engine
    from tests.engine_contract.fixtures import EngineFactory

__all__ = ["expected", "kernels", "model"]  # fixtures

StartPaged = Callable[..., "tuple[Engine, Recorder]"]


@pytest.fixture(params=["paged", "varlen"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class ReplayingRunner(CudaGraphRunner):
    """Captures steps as Python: replayed, they see new values in the old tensors, and nothing else that is new."""

    captured = replayed = 0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named | {"graphs": True})

    def _capture(self, key: Any, forward: Callable[[], torch.Tensor]) -> None:
        logits = forward()
        ReplayingRunner.captured += 1

        def replay() -> None:
            ReplayingRunner.replayed += 1
            logits.copy_(forward())

        self._graphs[key] = SimpleNamespace(replay=replay), logits


@pytest.fixture
def start_with(start: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> StartPaged:
    """Start an engine that does on the CPU what it would do on a GPU, but for streams and graphs."""
    monkeypatch.setitem(sys.modules, "openai_bls_transformers.gpu.attention_kernels", reference_kernels)
    monkeypatch.setattr(gpu, "attention_kernels", reference_kernels, raising=False)
    monkeypatch.setitem(sys.modules, "openai_bls_transformers.gpu.prompt_attention", reference_kernels)
    monkeypatch.setattr(gpu, "prompt_attention", reference_kernels, raising=False)
    monkeypatch.setattr(varlen_attention, "flash", reference_kernels.flash)

    def started(kind: str, *, replayed: bool = False, fused: bool = False, **overrides: Any) -> tuple[Engine, Recorder]:
        def set_attention(model: Any, *arguments: Any) -> None:
            paged_attention.use(model, kind)
            if fused:
                fused_layers.fuse(model)

        monkeypatch.setattr(preparation, "set_attention", set_attention)
        monkeypatch.setattr(continuous_batching, "CudaGraphRunner", ReplayingRunner if replayed else CudaGraphRunner)
        engine, recorder = start(**overrides)
        reference_kernels.calls.clear()  # the self-test's
        return engine, recorder

    return started


def test_answers_alone(start_with: StartPaged, expected: list[list[int]], kind: str) -> None:
    engine, recorder = start_with(kind)
    for i, prompt in enumerate(PROMPTS):
        engine.submit(request(i, prompt=prompt, max_tokens=COUNT))
        recorder.wait_end(i)
        assert recorder.tokens[i] == expected[i]
    assert set(reference_kernels.calls) == ({"decode", "mixed"} if kind == "paged" else {"flash"})


def test_answers_together(start_with: StartPaged, expected: list[list[int]], kind: str) -> None:
    engine, recorder = start_with(kind, max_num_tokens="64")
    assert run_all(engine, recorder, PROMPTS) == expected


def test_answers_with_long_prompts(
    start_with: StartPaged, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long prompts and long contexts, in steps with others and alone."""
    monkeypatch.setattr(paged_attention, "_LONG_PROMPT", 8)
    monkeypatch.setattr(paged_attention, "_LONG_CONTEXT", 8)
    engine, recorder = start_with("paged", max_num_tokens="32")
    assert run_all(engine, recorder, PROMPTS) == expected
    for i, prompt in enumerate(PROMPTS[:3]):
        assert run_all(engine, recorder, [prompt], first=1000 + i) == [expected[i]]
    assert set(reference_kernels.calls) == {"decode", "mixed", "prompt"}


def distance(one: Logprobs, other: Logprobs) -> float:
    """The most by which the log-probabilities of two greedy answers differ, up to where a near tie parts them.

    Products of fewer rows may differ by 1e-7, which rounds a key or a value to another number of FP8.
    """
    most = 0.0
    for ids, logprobs, other_ids, other_logprobs in zip(
        one.top_token_ids, one.top_logprobs, other.top_token_ids, other.top_logprobs, strict=True
    ):
        most = max(most, abs(logprobs[0] - other_logprobs[0]))
        if ids[0] != other_ids[0]:
            return max(most, logprobs[0] - logprobs[1], other_logprobs[0] - other_logprobs[1])
    return most


def test_a_cache_in_fp8(start_with: StartPaged, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine passes its self-test against the model without one, and every kernel has met the cache."""
    choice = RunnerChoice("continuous_batching", "paged", "tried", kv_cache_dtype="fp8")
    monkeypatch.setattr(preparation, "choices", lambda *_, **__: [choice])
    monkeypatch.setattr(paged_attention, "_LONG_PROMPT", 8)
    engine, recorder = start_with("paged")
    for layer in range(2):
        caches = processor_of(engine).cache.layer_to_allocator[layer].get_cache_for_block_table(layer)
        assert [cache.dtype for cache in caches] == [torch.float8_e4m3fn] * 2
        assert all(cache.float().any() for cache in caches)  # of the self-test
    for first in (0, 100):
        for i, prompt in enumerate(PROMPTS, first):
            # Alone: a step of decoding sees its own keys unrounded, which it does not beside another's prompt.
            engine.submit(request(i, prompt=prompt, max_tokens=COUNT, logprobs=2))
            recorder.wait_end(i)
    assert set(reference_kernels.calls) == {"decode", "mixed", "prompt"}
    for i in range(len(PROMPTS)):
        assert distance(recorder.logprobs(i), recorder.logprobs(100 + i)) < 0.1, "from pages of a shared prefix"
    assert max(recorder.deltas(100 + i)[0].cached_tokens for i in range(len(PROMPTS))) > 0
    assert isinstance(engine, embedded_engine.TransformersEngine)
    assert engine.self_test is not None
    assert engine.self_test.kv_cache_dtype == "fp8"


@pytest.mark.parametrize("tokens", ["64", "512"])
def test_answers_of_replayed_steps(start_with: StartPaged, expected: list[list[int]], tokens: str) -> None:
    ReplayingRunner.captured = ReplayingRunner.replayed = 0
    engine, recorder = start_with("paged", replayed=True, max_num_tokens=tokens)
    for turn in range(3):
        assert run_all(engine, recorder, PROMPTS, first=100 * turn) == expected
    assert ReplayingRunner.replayed > 2 * ReplayingRunner.captured


@pytest.mark.usefixtures("kernels")
def test_answers_of_fused_layers(start_with: StartPaged, expected: list[list[int]]) -> None:
    """Queries and keys are rotated where they are attended to or written."""
    engine, recorder = start_with("paged", fused=True, max_num_tokens="64")
    assert run_all(engine, recorder, PROMPTS) == expected
    assert set(reference_kernels.calls) == {"rotate and decode", "mixed"}


@pytest.fixture
def in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asynchronous batching without a GPU: steps are prepared before the last one's tokens are known to the host."""
    overlap(monkeypatch)


@pytest.mark.usefixtures("in_flight")
@pytest.mark.parametrize("replayed", [False, True])
def test_answers_with_steps_in_flight(start_with: StartPaged, expected: list[list[int]], replayed: bool) -> None:
    engine, recorder = start_with("paged", replayed=replayed, max_num_tokens="64")
    assert isinstance(processor_of(engine).inputs_and_outputs, input_outputs.ContinuousBatchingAsyncIOs)
    for turn in range(3):
        assert run_all(engine, recorder, PROMPTS, first=100 * turn) == expected
    for i, prompt in enumerate(PROMPTS[:3]):
        assert run_all(engine, recorder, [prompt], first=1000 + i) == [expected[i]]
    assert engine.stats().generated_tokens == COUNT * (3 * len(PROMPTS) + 3)


def test_decoding_uses_page_tables_alone(start_with: StartPaged) -> None:
    engine, recorder = start_with("paged")
    run_all(engine, recorder, PROMPTS[5:6])
    steps = reference_kernels.calls.count("decode") / 2  # layers
    assert steps >= COUNT - 1
    assert reference_kernels.calls.count("mixed") == 2  # layers, for the prompt


def test_seeds_do_not_depend_on_the_path(start_with: StartPaged, start: EngineFactory) -> None:
    sampling = SamplingParams(temperature=0.9, top_p=0.9, top_k=30, seed=5)
    plain = run_all(*start(), PROMPTS, sampling)
    assert run_all(*start_with("paged"), PROMPTS, sampling) == plain


def test_a_longer_context_than_the_page_tables_default(start_with: StartPaged, model: Any) -> None:
    engine, recorder = start_with("paged")
    prompt = [i % 250 for i in range(400)]
    engine.submit(request(1, prompt=prompt, max_tokens=100))
    recorder.wait_end(1)
    assert recorder.tokens[1] == generate(model, prompt, 100)


def test_gpu_attention_is_refused_on_a_cpu(start: EngineFactory) -> None:
    with pytest.raises(EngineLoadError, match="paged is for GPUs"):
        start(attention="paged")


WINDOWED = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("varlen", WINDOWED, "not every layer"),
        ("varlen", {"attn_logit_softcapping": 30.0}, "caps its attention"),
        ("paged", {"layer_types": ["conv", "full_attention"]}, "layers of type conv"),
        ("paged", {"layer_types": ["full_attention", "sliding_attention"]}, "a sliding window of None"),
        ("paged", {}, "float32"),
    ],
)
def test_what_is_refused(
    model: Any, kind: str, change: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in change.items():
        monkeypatch.setattr(model.config, name, value, raising=False)
    assert reason in (paged_attention.refusal(model, kind) or "")


def test_windows_are_refused_with_a_cache_that_drops_keys(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WINDOWED.items():
        monkeypatch.setattr(model.config, name, value)
    monkeypatch.setattr(paged_attention, "_KEEPS_ALL", False)
    assert "not every layer" in (paged_attention.refusal(model, "paged") or "")


def test_a_trial_that_fails_says_why(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "HALF", (torch.float32,))
    monkeypatch.setitem(sys.modules, "openai_bls_transformers.gpu.attention_kernels", reference_kernels)
    monkeypatch.setattr(gpu, "attention_kernels", reference_kernels, raising=False)
    monkeypatch.setattr(varlen_attention, "flash", reference_kernels.flash)
    assert paged_attention.refusal(model, "varlen") is None
    for change in ({}, WINDOWED, {"attn_logit_softcapping": 2.0}):
        for name, value in change.items():
            monkeypatch.setattr(model.config, name, value, raising=False)
        assert paged_attention.refusal(model, "paged") is None
    monkeypatch.setattr(reference_kernels, "decode_attention", lambda query, *_: query)
    assert "differs from the reference" in (paged_attention.refusal(model, "paged") or "")


def test_a_pytorch_without_flash_attention(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "HALF", (torch.float32,))
    monkeypatch.setattr(varlen_attention, "flash", None)
    assert "no flash attention" in (paged_attention.refusal(model, "varlen") or "")


def processor_of(engine: Engine) -> Any:
    assert isinstance(engine, embedded_engine.TransformersEngine)
    assert isinstance(engine._batcher, continuous_batching.ContinuousBatcher)
    return engine._batcher._manager.batch_processor


def test_ladders() -> None:
    assert ladder(1) == (1,)
    assert ladder(20) == (1, 2, 4, 8, 16, 20)
    assert ladder(700)[-3:] == (512, 640, 700)
    assert [padded(count, ladder(100)) for count in (1, 3, 65, 97, 100, 101)] == [1, 4, 96, 100, 100, 101]
