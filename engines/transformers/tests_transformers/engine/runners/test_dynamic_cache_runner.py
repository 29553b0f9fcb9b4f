"""The runner with a cache for each sequence, held against `generate`, and what fails in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Mamba2Config, RecurrentGemmaConfig

from openai_bls_transformers.runners.dynamic_cache_runner import DynamicCacheRunner
from openai_bls_transformers.runners.runner import BatchingConfig, Sampling
from openai_bls_transformers.runners.sampler import Sampler
from openai_bls_transformers.runners.sequence_batch import StepModel
from tests.engine_contract.support import VOCAB_SIZE, request
from tests_transformers.engine.arrivals import run_together
from tests_transformers.engine.engine.test_engine import COUNT, PROMPTS, expected, generate, model, run_all

if TYPE_CHECKING:
    from tests.engine_contract.fixtures import EngineFactory

__all__ = ["expected", "model"]  # fixtures

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
OPTIONS = {"runner": "dynamic_cache"}


def run(model: Any, prompts: list[list[int]], count: int, **sizes: Any) -> tuple[list[list[int]], DynamicCacheRunner]:
    """Greedy tokens for prompts that come together."""
    config = BatchingConfig(
        **{
            "max_batch_size": 16,
            "max_num_tokens": 512,
            "page_size": 32,
            "max_tokens_in_kv_cache": 4096,
            "free_memory_fraction": 0.9,
            "prefix_sharing": False,
            "max_request_tokens": 512,
        }
        | sizes
    )
    ended: dict[str, Any] = {}
    runner = DynamicCacheRunner(
        model,
        config,
        lambda: None if runner.stats().running or runner.stats().waiting else runner.stop(),
        lambda outputs: ended.update({output.request_id: output for output in outputs}),
    )
    for i, prompt in enumerate(prompts):
        runner.add(str(i), prompt, count, (), GREEDY)
    assert runner.run() is None
    states = [ended[str(i)] for i in range(len(prompts))]
    assert [state.error for state in states] == [None] * len(prompts)
    return [state.generated_tokens for state in states], runner


@pytest.mark.parametrize("sizes", [{}, {"max_num_tokens": 24}, {"shared_steps": False}], ids=str)
def test_greedy_equals_generate(model: Any, expected: list[list[int]], sizes: dict[str, Any]) -> None:
    found, runner = run(model, PROMPTS, COUNT, **sizes)
    assert found == expected
    alone = len(PROMPTS) * COUNT
    steps = runner.stats().steps
    assert steps == alone if sizes.get("shared_steps") is False else steps < alone / 2


def random_model(config: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}


def test_a_state_without_tokens_is_shared_by_sequences_of_any_length() -> None:
    model = random_model(Mamba2Config(**SIZES, num_heads=4, head_dim=16, state_size=8, n_groups=1, chunk_size=8))
    found, runner = run(model, PROMPTS[:6], 10)
    assert found == [generate(model, prompt, 10) for prompt in PROMPTS[:6]]
    assert runner.stats().steps <= 6 + 10


def test_a_state_in_the_modules_goes_with_its_sequence() -> None:
    model = random_model(RecurrentGemmaConfig(**SIZES, intermediate_size=64, lru_width=32, attention_window_size=8))
    found, _ = run(model, PROMPTS[:6], 10)
    assert found == [generate(model, prompt, 10) for prompt in PROMPTS[:6]]


def test_a_rotary_embedding_that_grows_with_its_sequence() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    config = LlamaConfig(**SIZES, intermediate_size=64, max_position_embeddings=24, rope_parameters=rope)
    prompts = [PROMPTS[9], PROMPTS[3], PROMPTS[7]]  # long, short, and growing beyond
    torch.manual_seed(0)
    wanted = [generate(random_model(config), prompt, 10) for prompt in prompts]
    assert run(random_model(config), prompts, 10)[0] == wanted


def test_a_long_prompt_does_not_hold_up_the_others(start: EngineFactory) -> None:
    engine, recorder = start(**OPTIONS, max_num_tokens="16")
    run_together(engine, recorder, [request(1, max_tokens=60), request(2, prompt=[3] * 300, max_tokens=2)])
    begun = next(n for n, step in enumerate(recorder.steps) if any(delta.request_id == 2 for delta in step))
    assert sum(any(delta.request_id == 1 for delta in step) for step in recorder.steps[:begun]) >= 300 // 16


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), torch.OutOfMemoryError("out of memory")], ids=repr)
@pytest.mark.parametrize("prompts_only", [True, False])
def test_a_pass_that_fails_ends_its_sequences_alone(
    start: EngineFactory,
    expected: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    prompts_only: bool,
) -> None:
    engine, recorder = start(**OPTIONS)
    original = StepModel.forward

    def forward(self: Any, ids: torch.Tensor, *args: Any, **more: Any) -> Any:
        if 500 in ids and ("next_sequence_length" not in more) == prompts_only:
            raise error
        return original(self, ids, *args, **more)

    monkeypatch.setattr(StepModel, "forward", forward)
    engine.submit(request(1, prompt=[500] * 200, max_tokens=20))  # too long to share a pass with the others
    found = run_all(engine, recorder, PROMPTS[2:6], first=100)
    recorder.wait_end(1)
    assert found == expected[2:6]
    assert recorder.reason(1) == "error"
    assert str(error) not in (recorder.ends[1].error or "")
    assert len(recorder.tokens[1]) == (0 if prompts_only else 1)
    assert (engine.stats().running, engine.stats().failed) == (0, False)


def test_sampling_that_fails_ends_a_step(
    start: EngineFactory, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, recorder = start(**OPTIONS)
    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "pick", lambda *args: 1 / 0)
        engine.submit(request(1))
        recorder.wait_end(1)
    assert recorder.reason(1) == "error"
    assert run_all(engine, recorder, PROMPTS[:3], first=100) == expected[:3]
