"""Calibration: the combinations that TensorRT-LLM fails at, its data sets and its numbers of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from openai_bls_tensorrt_llm.installed.interface import KvCacheDtype, Quant
from openai_bls_tensorrt_llm.recipe.model.families import family_of
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions
from openai_bls_tensorrt_llm.recipe.plan.calibration import Calibration
from openai_bls_tensorrt_llm.recipe.plan.planning import Plan, Request
from openai_bls_tensorrt_llm.recipe.quantizations import BUILT
from tests_tensorrt_llm.recipe import published_models
from tests_tensorrt_llm.recipe.plan.test_planning import asked
from tests_tensorrt_llm.recipe.plan.test_planning import plan_of as plan_of_any

# Sources: module docstring of `calibration`. The dispatch is the same in 0.20, 1.0, 1.1 and 1.2.
_NATIVE: tuple[Quant, ...] = ("int8_weight_only", "int4_weight_only", "fp8_rowwise")
Combinations = set[tuple[Quant | None, str]]
_FP8: Combinations = {(quant, "fp8") for quant in _NATIVE}
_INT8: Combinations = {(quant, "int8") for quant in (*_NATIVE, None)}
_NVFP4: Combinations = {("nvfp4", cache) for cache in ("auto", "fp8", "int8")}
FAILING: dict[str, Combinations] = {
    **dict.fromkeys(("Llama-3.1-8B", "Mistral-7B-v0.1", "Mixtral-8x7B-v0.1", "Qwen3-8B", "chatglm3-6b"), _FP8),
    "Qwen-7B-Chat": _FP8,
    "Phi-3-mini-4k-instruct": _FP8 | _INT8,
    "Baichuan2-13B-Chat": _FP8 | _INT8,
    **dict.fromkeys(("gemma-7b", "gemma-2-9b", "gemma-3-1b-it"), _FP8 | _INT8 | _NVFP4 | {(None, "fp8")}),
}


def calibration(name: str, quant: Quant | None = None, cache: KvCacheDtype = "auto", **more: Any) -> Calibration:
    return Calibration(family_of(published_models.config(name)), quant, cache, **more)


def plan_of(config: dict[str, Any], own: TensorRtLlmOptions, *, request: Request | None = None) -> Plan:
    """Of an engine, unless the options say otherwise."""
    return plan_of_any(config, msgspec.structs.replace(own, flow=own.flow or "tensorrt"), request=request)


@pytest.mark.parametrize("name", FAILING)
def test_combinations_that_fail(name: str) -> None:
    caches: list[KvCacheDtype] = [kind for kind in get_args(KvCacheDtype) if kind != "nvfp4"]
    found = {
        (quant, cache) for quant in (None, *BUILT) for cache in caches if not calibration(name, quant, cache).works
    }
    assert found == FAILING[name]


@pytest.mark.parametrize(
    ("name", "own", "says"),
    [
        (
            "Llama-3.1-8B",
            TensorRtLlmOptions(quant="int8_weight_only", kv_cache_dtype="fp8"),
            "give --kv-cache-dtype auto or int8, or --quant fp8 or int8_sq or awq or w4a8_awq or nvfp4",
        ),
        (
            "gemma-7b",
            TensorRtLlmOptions(kv_cache_dtype="int8"),
            "give --kv-cache-dtype auto, or --quant fp8 or int8_sq or awq",
        ),
    ],
)
def test_they_are_problems_of_the_plan(name: str, own: TensorRtLlmOptions, says: str) -> None:
    """Which --force tries all the same, in another release than those that were read."""
    made = plan_of(published_models.config(name), own)
    (problem,) = made.problems
    assert problem.endswith(says)
    assert made.refusals == ()


@pytest.mark.parametrize(
    ("name", "quant", "cache", "size", "texts"),
    [
        ("Llama-3.1-8B", "fp8", "auto", None, 512),
        ("Llama-3.1-8B", "awq", "auto", None, 32),
        ("Llama-3.1-8B", "w4a8_awq", "fp8", 16, 16),
        ("Qwen2.5-7B-Instruct", None, "int8", None, 512),
        ("chatglm3-6b", "int8_weight_only", "int8", None, 64),
        ("chatglm3-6b", "int8_sq", "int8", None, 512),
    ],
)
def test_texts(name: str, quant: Quant | None, cache: KvCacheDtype, size: int | None, texts: int) -> None:
    """The build gives this number to TensorRT-LLM and to the progress bar, and the plan says it."""
    found = calibration(name, quant, cache, size=size).findings({}, 1, trust_remote_code=False)
    assert f"over {texts} texts first" in found.notes[0]
    own = TensorRtLlmOptions(quant=quant, kv_cache_dtype=cache, calib_size=size)
    made = plan_of(published_models.config(name), own)
    assert made.calib_size == texts


def test_numbers_of_texts_that_are_not_taken() -> None:
    note = calibration("Llama-3.1-8B", "awq", size=100).findings({}, 1, trust_remote_code=False).notes[1]
    assert note == "--calib-size 100: TensorRT-LLM calibrates awq on 32 texts at most"
    own = TensorRtLlmOptions(kv_cache_dtype="int8", calib_size=100)
    (refusal,) = plan_of(published_models.config("Qwen2.5-7B-Instruct"), own).refusals
    assert "calibrates an int8 KV cache of Qwen2 models on 512 texts; leave it out" in refusal


@pytest.mark.parametrize(
    ("quant", "cache", "dataset", "refused"),
    [
        ("fp8", "auto", "texts", None),
        ("awq", "fp8", "ccdv/cnn_dailymail", None),
        ("fp8", "auto", "pileval", None),
        (None, "fp8", "texts", None),
        (None, "int8", "cnn_dailymail", None),
        (None, "int8", "copy_of_cnn_dailymail", None),
        ("fp8", "auto", "mit-han-lab/pileval", "no data set that TensorRT-LLM knows by that name"),
        ("fp8", "auto", "lambada", "no data set that TensorRT-LLM knows by that name"),
        ("fp8", "auto", "ScienceQA", "which has images; rename the directory"),
        (None, "int8", "texts", "cannot be read: an int8 KV cache beside weights that ModelOpt does not quantize"),
        ("int8_weight_only", "int8", "texts", "or give --quant fp8, int8_sq, awq, w4a8_awq, nvfp4 too"),
        ("fp8_rowwise", "int8", "pileval", "cannot be read"),
    ],
)
def test_data_sets(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quant: Quant | None,
    cache: KvCacheDtype,
    dataset: str,
    refused: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("texts", "copy_of_cnn_dailymail", "ScienceQA"):
        Path(folder).mkdir()
    found = calibration("Llama-3.1-8B", quant, cache, dataset=dataset).findings({}, 1, trust_remote_code=False)
    assert [refused is not None and refused in sentence for sentence in found.refusals] == [True] * bool(refused)
    copies = [note for note in found.notes if "is read as a copy of cnn_dailymail, by its path" in note]
    assert len(copies) == (dataset == "copy_of_cnn_dailymail")


def test_the_run_is_told_with_its_gpus() -> None:
    own = TensorRtLlmOptions(quant="awq", tensor_parallel_size=2)
    notes = "\n".join(plan_of(published_models.config("Llama-3.1-8B"), own).notes)
    assert "awq runs the unquantized model on the 2 GPUs together over 32 texts" in notes
    assert "give a local directory" in notes
    own = TensorRtLlmOptions(kv_cache_dtype="int8")
    notes = "\n".join(plan_of(published_models.config("Llama-3.1-8B"), own).notes)
    assert "--kv-cache-dtype int8 runs the unquantized model on the GPU over 512 texts" in notes
    assert "name a local copy of cnn_dailymail" in notes
    loaded = plan_of(published_models.config("Llama-3.1-8B"), TensorRtLlmOptions(kv_cache_dtype="fp8", flow="pytorch"))
    assert not any("unquantized" in note for note in loaded.notes)


@pytest.mark.parametrize(
    ("name", "own", "refused"),
    [
        ("Llama-3.1-8B", TensorRtLlmOptions(), ""),
        ("Llama-3.1-8B", TensorRtLlmOptions(quant="int8_weight_only"), ""),
        ("Llama-3.1-8B", TensorRtLlmOptions(quant="fp8"), "calibrating runs the Python code"),
        ("Llama-3.1-8B", TensorRtLlmOptions(kv_cache_dtype="int8"), "calibrating runs the Python code"),
        ("Llama-3.1-8B", TensorRtLlmOptions(flow="pytorch"), ""),
        ("Qwen2.5-7B-Instruct", TensorRtLlmOptions(), "converting runs the Python code"),
    ],
)
def test_code_of_the_checkpoint_needs_the_flag(name: str, own: TensorRtLlmOptions, refused: str) -> None:
    config = published_models.config(name) | {"auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
    problems = plan_of(config, own).problems
    assert [bool(refused) and problem.startswith(refused) for problem in problems] == [True] * bool(refused)
    assert all("pass --trust-remote-code if you trust it" in problem for problem in problems)
    assert plan_of(published_models.config(name), own).problems == ()
    trusted = asked(config, msgspec.structs.replace(own, flow="tensorrt"), trust_remote_code=True)
    assert plan_of(config, own, request=trusted).problems == ()
