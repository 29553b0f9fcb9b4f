"""Prompts that are longer than a step of the engine."""

from __future__ import annotations

import pytest

from openai_bls.core.settings import EngineSettings
from openai_bls_tensorrt_llm.installed.interface import Flow, KvCacheDtype
from openai_bls_tensorrt_llm.recipe.gpus import find_gpu
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions
from openai_bls_tensorrt_llm.recipe.plan.chunking import prompts, without_paged_context


def options(
    *, chunked: bool | None = None, reuse: bool | None = None, longest: int | None = None
) -> TensorRtLlmOptions:
    settings = EngineSettings(enable_chunked_context=chunked, enable_kv_cache_reuse=reuse)
    return TensorRtLlmOptions(settings=settings, max_input_len=longest)


@pytest.mark.parametrize(
    ("plugins", "quant", "kv_cache_dtype", "gpu", "says"),
    [
        ({}, "", "auto", "H100", ""),
        ({}, "", "auto", "A100-80GB", ""),
        ({"use_paged_context_fmha": "enable"}, "fp8", "fp8", "H100", ""),
        ({}, "nvfp4", "fp8", "B200", ""),
        ({"use_paged_context_fmha": "disable"}, "", "auto", "H100", "use_paged_context_fmha is disabled"),
        ({"context_fmha": "disable"}, "", "auto", "H100", "context_fmha is disabled"),
        ({"streamingllm": "enable"}, "", "auto", "H100", "streamingllm is enabled"),
        ({}, "", "int8", "H100", "none with an int8 KV cache"),
        ({}, "", "fp8", "H100", "none with an fp8 KV cache unless --quant is fp8, w4a8_awq, nvfp4"),
        ({}, "awq", "fp8", "L4", "none with an fp8 KV cache"),
        ({}, "", "auto", "T4", "T4 (7.5) is older than Ampere (8.0)"),
    ],
)
def test_paged_context(plugins: dict[str, str], quant: str, kv_cache_dtype: KvCacheDtype, gpu: str, says: str) -> None:
    own = TensorRtLlmOptions(plugins=plugins)
    flows: tuple[Flow, Flow] = ("tensorrt", "pytorch")
    built, loaded = (without_paged_context(own, flow, quant, kv_cache_dtype, find_gpu(gpu)) for flow in flows)
    assert says in built
    assert bool(built) == bool(says)
    assert loaded == ""


def test_prompts_end_where_it_cannot_be() -> None:
    refused = prompts(options(chunked=False), 32767, 8192, "")
    assert (refused.max_input_len, refused.chunked, refused.problems) == (8192, False, ())
    assert "(enable_chunked_context is off): raise --max-num-tokens" in refused.notes[0]
    lacking = prompts(options(), 32767, 8192, "context_fmha is disabled")
    assert (lacking.max_input_len, lacking.chunked, lacking.problems) == (8192, None, ())
    assert "(that needs paged context FMHA, and context_fmha is disabled)" in lacking.notes[1]


@pytest.mark.parametrize("lacking", ["", "context_fmha is disabled"])
def test_what_was_asked_for_is_not_cut_down(lacking: str) -> None:
    found = prompts(options(chunked=False, longest=20000), 20000, 8192, lacking)
    (problem,) = found.problems
    assert "--max-input-len 20000 is more than the 8192 tokens of one step" in problem
    assert found.max_input_len == 20000


def test_what_needs_it_is_refused() -> None:
    found = prompts(options(chunked=True, reuse=True), 100, 8192, "context_fmha is disabled")
    assert [problem.split(",")[0] for problem in found.problems] == [
        "--enable-chunked-context needs paged context FMHA",
        "--enable-kv-cache-reuse needs paged context FMHA",
    ]
    assert prompts(options(reuse=False), 100, 8192, "context_fmha is disabled").notes == ()
    assert "do not share their KV cache" in prompts(options(), 100, 8192, "context_fmha is disabled").notes[0]
