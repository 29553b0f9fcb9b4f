"""Checks of a plan: what does not fit or divide, and what a GPU does not compute in."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from openai_bls_tensorrt_llm.recipe.gpus import find_gpu
from openai_bls_tensorrt_llm.recipe.memory import PlannedEngine, estimate
from openai_bls_tensorrt_llm.recipe.model.shapes import ModelShape
from openai_bls_tensorrt_llm.recipe.plan.checks import check
from openai_bls_tensorrt_llm.recipe.plan.findings import Findings
from tests_tensorrt_llm.recipe import published_models


def checked(shape: ModelShape, **options: Any) -> Findings:
    engine = PlannedEngine(**options)
    return check(shape, engine, estimate(shape, engine))


def problems(name: str, **options: Any) -> str:
    return "\n".join(checked(published_models.shape(name), **options).problems)


def test_weights_that_do_not_fit() -> None:
    text = problems("Qwen2.5-72B-Instruct", gpu=find_gpu("H100"))
    assert text.startswith("does not fit: each H100 has 78.95 GiB")
    assert problems("Qwen2.5-72B-Instruct", gpu=find_gpu("H100"), tp=4) == ""


def test_a_cache_below_one_sequence() -> None:
    text = problems("Llama-3.1-8B", gpu=find_gpu("L4"), max_seq_len=131_072)
    assert "less than one sequence of 131,072" in text
    assert "--kv-cache-dtype" in text
    text = problems("Llama-2-7b-hf", gpu=find_gpu("L4"), max_seq_len=4096, max_beam_width=8)
    assert "less than one sequence of 4,096 with 8 beams" in text
    windows = {"windows": (512, 4096), "max_tokens_in_kv_cache": 2048}
    text = problems("Llama-2-7b-hf", gpu=find_gpu("L4"), max_seq_len=4096, **windows)
    # 512 tokens, the 512 of a prompt that are beyond them, and 4,096: the mean.
    assert "one sequence of 4,096, of which the attention windows keep 2,560: " in text


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("Qwen2.5-7B-Instruct", {"tp": 8}, "--tp-size 8 .* 28 attention heads: .* 1, 2, 4"),
        ("Qwen2-0.5B", {"tp": 4}, "--tp-size 4 .* 14 attention heads"),
        ("Qwen1.5-MoE-A2.7B", {"tp": 3}, "--tp-size 3 .* 1, 2, 4, 8, 16$"),
        ("Llama-2-7b-hf", {"pp": 33}, "--pp-size 33 .* 32 layers"),
        ("Llama-2-7b-hf", {"quant": "gptq"}, "--quant gptq: "),
        ("Llama-2-7b-hf", {"quant": "fp8", "flow": "pytorch"}, "--quant fp8 .*--flow tensorrt"),
        ("Qwen2.5-7B-Instruct-AWQ", {"quant": "fp8"}, r"\(awq\): .*--quant fp8"),
    ],
)
def test_refused_whatever_the_gpu(name: str, options: dict[str, Any], says: str) -> None:
    assert len(checked(published_models.shape(name), **options).problems) == 1
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(problems(name, **options))


def test_heads_that_do_not_divide() -> None:
    """6 heads of keys and values over 4 ranks."""
    shape = msgspec.structs.replace(published_models.shape("Llama-2-7b-hf"), heads=24, kv_heads=6)
    (problem,) = checked(shape, tp=4).problems
    assert "--tp-size that divides 6" in problem


@pytest.mark.parametrize(
    ("gpu", "options", "says"),
    [
        ("A100-80GB", {"quant": "fp8"}, "does not compute in fp8 (from Ada, 8.9 on), so --quant fp8 cannot run on it"),
        ("H100", {"quant": "nvfp4"}, "does not compute in nvfp4 (from Blackwell, 10.0 on)"),
        ("A100-80GB", {"quant": "w4a8_awq"}, "does not compute in fp8"),
        ("A100-80GB", {"kv_cache_dtype": "fp8"}, "give --kv-cache-dtype auto or int8"),
        ("L4", {"kv_cache_dtype": "nvfp4"}, "give --kv-cache-dtype auto or fp8 or int8"),
        ("T4", {"dtype": "bfloat16"}, "give --dtype float16"),
        ("V100-32GB", {"dtype": "float16"}, "dropped the V100"),
        ("B200", {"quant": "awq"}, "no engine with awq weights for B200 (10.0): give --quant fp8 or nvfp4"),
        ("GB200", {"kv_cache_dtype": "int8"}, "no engine with an int8 KV cache for GB200 (10.0)"),
        ("L4", {"kv_cache_dtype": "nvfp4", "flow": "pytorch"}, "give --kv-cache-dtype auto or fp8"),
        # A GeForce of that generation (12.0) is not meant.
        ("RTX 5090", {"quant": "awq"}, None),
    ],
)
def test_what_a_gpu_lacks(gpu: str, options: dict[str, Any], says: str | None) -> None:
    found = checked(published_models.shape("Qwen1.5-1.8B-Chat"), gpu=find_gpu(gpu), **options)
    assert len(found.problems) == (says is not None)
    assert says is None or says in found.problems[0]


def test_notes() -> None:
    def notes(name: str, **options: Any) -> str:
        return "\n".join(checked(published_models.shape(name), **options).notes)

    assert "2 ranks keep a copy of each" in notes("chatglm3-6b", tp=4)
    # Which 3 cannot: then the problem is told, and no note about copies that there are none of.
    assert "keep a copy" not in notes("chatglm3-6b", tp=3)
    assert "some hold one more" in notes("Qwen2-0.5B", pp=5)
    assert "before Ampere" in notes("Qwen2-0.5B", gpu=find_gpu("T4"))
    assert "look back at most 4,096 tokens" in notes("Mistral-7B-v0.1", max_seq_len=8192)
    assert notes("Mistral-7B-v0.1", max_seq_len=8192, windows=(4096,)) == ""
    assert notes("Mistral-7B-v0.1", max_seq_len=4096) == ""
    assert "of --max-batch-size 64 sequences" in notes("Llama-2-7b-hf", gpu=find_gpu("L4"))
    assert "builds nothing" in notes("Llama-2-7b-hf", flow="pytorch")
