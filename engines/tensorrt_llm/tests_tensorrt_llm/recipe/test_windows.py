"""Attention windows: what config.json says, and what becomes of it in each flow and on each backend."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from openai_bls.core.settings import EngineSettings
from openai_bls_tensorrt_llm.installed.interface import Flow, Version
from openai_bls_tensorrt_llm.recipe.gpus import find_gpu
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions
from openai_bls_tensorrt_llm.recipe.plan.planning import plan
from openai_bls_tensorrt_llm.recipe.plan.windows import windows_of
from tests_tensorrt_llm.recipe import published_models
from tests_tensorrt_llm.recipe.plan.test_planning import asked, plan_of

GEMMA3 = published_models.config("gemma-3-1b-it")
MISTRAL = published_models.config("Mistral-7B-v0.1")
_SLIDING, _FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (GEMMA3, (512, 512, 512, 512, 512, 3100)),
        # As transformers 4.53 and later write it, in which the last layers are a broken cycle.
        (
            {"sliding_window": 512, "layer_types": [*[_SLIDING] * 5, _FULL, *[_SLIDING] * 2]},
            (512, 512, 512, 512, 512, 3100),
        ),
        ({"sliding_window": 512, "model_type": "gemma3_text", "_sliding_window_pattern": 2}, (512, 3100)),
        ({"model_type": "gemma3", "text_config": {"sliding_window": 8}}, (8, 8, 8, 8, 8, 3100)),
        ({"sliding_window": 1024}, (1024,)),
        ({"sliding_window": 1024, "layer_types": [_FULL, _FULL]}, (3100,)),
        (MISTRAL, ()),
        ({"sliding_window": None}, ()),
        ({}, ()),
    ],
)
def test_windows_of_a_model(config: dict[str, Any], windows: tuple[int, ...]) -> None:
    """The first is what examples/models/core/gemma/README.md gives for this model and length."""
    assert windows_of(config, 3100) == windows


@pytest.mark.parametrize(
    ("config", "flow", "length", "windows", "reuse"),
    [
        (GEMMA3, "tensorrt", 32768, "512,512,512,512,512,32768", False),
        # Its model class has them itself there.
        (GEMMA3, "pytorch", 32768, "", False),
        (MISTRAL, "tensorrt", 32768, "4096", False),
        (MISTRAL, "pytorch", 4096, "", None),
        # Gemma 2: no layers with windows in an engine.
        (published_models.config("gemma-2-9b"), "tensorrt", 4096, "", None),
        (published_models.config("gemma-7b"), "tensorrt", 8192, "", None),
        (published_models.config("Qwen2.5-7B-Instruct"), "tensorrt", 32768, "", None),
    ],
)
def test_windows_in_the_plan(config: dict[str, Any], flow: Flow, length: int, windows: str, reuse: bool | None) -> None:
    made = plan_of(config, TensorRtLlmOptions(flow=flow))
    found = made.settings
    assert (made.engine.max_seq_len, found.max_attention_window_size, found.enable_kv_cache_reuse) == (
        length,
        windows,
        reuse,
    )
    assert made.problems == ()
    assert any("look back 512" in note or "look back 4,096" in note for note in made.notes) == bool(windows)


def test_what_was_asked_for_stays() -> None:
    own = EngineSettings(max_attention_window_size="1024", enable_kv_cache_reuse=True)
    made = plan_of(GEMMA3, TensorRtLlmOptions(flow="tensorrt", settings=own))
    assert (made.settings.max_attention_window_size, made.settings.enable_kv_cache_reuse) == ("1024", True)
    (problem,) = plan_of(GEMMA3, TensorRtLlmOptions(flow="pytorch", settings=own)).problems
    assert problem.startswith("--enable-kv-cache-reuse changes this model's text in the PyTorch flow")
    assert made.problems == ()


def test_a_window_that_is_never_reached() -> None:
    own = TensorRtLlmOptions(flow="tensorrt", max_input_len=400, max_output_len=100)
    assert plan_of(GEMMA3, own).settings.max_attention_window_size == ""


def test_windows_make_room() -> None:
    """22 of 26 layers keep 512 tokens, and one step of a long prompt; the estimate counts so."""
    own = TensorRtLlmOptions(flow="tensorrt", max_input_len=512, max_output_len=31744)
    with_windows = plan_of(GEMMA3, own).estimate
    full = EngineSettings(max_attention_window_size="32256")
    without = plan_of(GEMMA3, msgspec.structs.replace(own, settings=full)).estimate
    assert with_windows is not None
    assert without is not None
    assert with_windows.kv_tokens_per_sequence == (5 * 512 + 32256) // 6 + 1
    assert without.kv_tokens_per_sequence == 32256
    assert (with_windows.batch_full or 0) > 5 * (without.batch_full or 0)


def test_a_cache_of_fewer_tokens_than_a_sequence() -> None:
    """A guide's own line: Baichuan2-13B on an A800, with 2,560 tokens of cache, also as its window."""
    config = published_models.config("Baichuan2-13B-Chat")
    own = EngineSettings(max_tokens_in_paged_kv_cache=2560, max_attention_window_size="2560")
    options = TensorRtLlmOptions(settings=own, max_input_len=4096, max_output_len=1024)
    request = asked(config, options, trust_remote_code=True)
    made = plan(request, Version(1, 2, 1), find_gpu("A800"))
    assert made.estimate is not None
    assert (made.estimate.kv_tokens, made.estimate.batch_full) == (2560, 0)
    (problem,) = made.problems
    assert "raise --max-tokens-in-kv-cache " in problem
    assert "at most 2,560 tokens" in problem
