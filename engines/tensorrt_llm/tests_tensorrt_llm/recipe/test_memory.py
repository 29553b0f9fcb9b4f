"""Weights and KV cache, against logs of real engines that others have published, and against what holds of any."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.manifest import BuildError
from openai_bls_tensorrt_llm.recipe.gpus import GIB, GPUS, find_gpu
from openai_bls_tensorrt_llm.recipe.memory import MARGIN_BYTES, Estimate, PlannedEngine, estimate, lines
from openai_bls_tensorrt_llm.recipe.model.shapes import shape_of
from openai_bls_tensorrt_llm.recipe.quantizations import QUANTIZATIONS
from tests_tensorrt_llm.recipe import published_models
from tests_tensorrt_llm.recipe.published_models import NAMES

MIB = 1 << 20
H100 = find_gpu("H100")


def estimated(name: str, **options: Any) -> Estimate:
    return estimate(published_models.shape(name), PlannedEngine(**options))


def test_the_log_in_tensorrt_llms_documentation() -> None:
    """docs/source/reference/memory.md: a Llama 7B with FP8 weights and cache on an H100, with TensorRT-LLM's defaults.

    The log says 6678 MiB of weights on the GPU, 79.10 GiB in all of which 70.48 were left, and 63.44 GiB for a cache of
    259,840 tokens.
    """
    found = estimated("Llama-2-7b-hf", quant="fp8", kv_cache_dtype="fp8", gpu=H100)
    assert found.weights_per_rank / MIB == pytest.approx(6678, rel=0.001)
    assert 79.10 - 70.48 < found.gpu_memory / GIB < 79.10 - 70.48 + 1
    assert found.kv_tokens is not None
    assert 0.97 * 259_840 < found.kv_tokens < 259_840


def test_logs_of_weights_and_caches() -> None:
    """TensorRT-LLM's examples/models/core/glm-4-9b (ChatGLM3-6B, 11909 MiB), its issues 1400 (SmoothQuant, 6683 MiB,
    69524783104 bytes for 132608 tokens) and 6294 (52.51 GiB)."""
    assert estimated("chatglm3-6b").weights / MIB == pytest.approx(11_909, rel=0.001)
    smooth = estimated("Llama-2-7b-hf", quant="int8_sq", dtype="float16")
    assert smooth.weights_per_rank / MIB == pytest.approx(6683, rel=0.002)
    assert smooth.kv_per_token == 69_524_783_104 / 132_608
    half = estimated("Llama-3.1-8B", kv_cache_dtype="fp8")
    assert half.kv_per_token == pytest.approx(52.51 * GIB / 860_320, rel=0.001)


def test_weights_of_each_quantization() -> None:
    """Llama-2-7B: 6,476,005,376 weights in matrices, 262,410,240 in tables and norms, which stay in float16."""
    linear, rest = 32 * (4 * 4096**2 + 3 * 4096 * 11008), 2 * 32000 * 4096 + 65 * 4096
    assert linear + rest == 6_738_415_616
    sizes = dict.fromkeys(("fp8", "fp8_rowwise", "fp8_block", "int8_weight_only", "int8_sq"), 1.0)
    sizes |= {"int4_weight_only": 0.5, "awq": 0.515625, "w4a8_awq": 0.515625, "nvfp4": 0.5625}
    sizes |= {"gptq": 0.53125, "int8_gptq": 1.03125}
    assert set(sizes) == set(QUANTIZATIONS)
    for quant, size in sizes.items():
        assert estimated("Llama-2-7b-hf", quant=quant).weights == linear * size + rest * 2, quant
    assert estimated("Llama-2-7b-hf").weights == 2 * 6_738_415_616
    assert estimated("Llama-2-7b-hf", dtype="float32").weights == 4 * 6_738_415_616


def test_ranks_share() -> None:
    """Two ranks: half of the matrices and tables each, and the norms on both."""
    norms = 65 * 4096 * 2
    found = estimated("Llama-2-7b-hf", tp=2)
    assert found.weights_per_rank == (2 * 6_738_415_616 - norms) / 2 + norms
    assert found.weights == 2 * found.weights_per_rank
    assert found.kv_per_token_per_rank * 2 == found.kv_per_token == 512 * 1024


def test_heads_that_several_ranks_keep() -> None:
    """ChatGLM3 has two heads of keys and values: of 4 ranks, two keep the same one."""
    found = estimated("chatglm3-6b", tp=4)
    assert found.kv_per_token == 28 * 1024
    assert found.kv_per_token_per_rank == 14 * 1024


def test_stages() -> None:
    """Two stages: half of the layers each; with tied embeddings both ends hold the table."""
    found = estimated("Llama-2-7b-hf", pp=2)
    assert found.kv_per_token_per_rank * 2 == found.kv_per_token
    assert found.weights_per_rank == 2 * (32000 * 4096) + (2 * 6_738_415_616 - 4 * 32000 * 4096) / 2
    tied = estimated("Qwen2-0.5B", pp=2)
    assert tied.weights == 2 * (494_032_768 + 151_936 * 896)


def test_cache_types() -> None:
    for kind, kib in {"auto": 56, "fp8": 28, "int8": 28, "nvfp4": 15.75}.items():
        assert estimated("Qwen2.5-7B-Instruct", kv_cache_dtype=kind).kv_per_token == kib * 1024, kind


def test_what_auto_is() -> None:
    """As TensorRT-LLM has it: the checkpoint's own type, but never float32."""
    assert estimated("Qwen2.5-7B-Instruct").dtype == "bfloat16"
    assert estimated("Llama-2-7b-hf").dtype == "float16"
    shape = published_models.shape("Llama-2-7b-hf")
    for told in ("float32", ""):
        assert estimate(msgspec.structs.replace(shape, dtype=told), PlannedEngine()).dtype == "float16"


def test_experts_in_mxfp4() -> None:
    """gpt-oss-120b: 65,248,815,744 bytes in the index of its files, of which its experts alone are quantized."""
    config = transformers.AutoConfig.for_model("gpt_oss").to_dict()
    config |= {"architectures": ["GptOssForCausalLM"], "quantization_config": {"quant_method": "mxfp4"}}
    found = estimate(shape_of(config | {"dtype": "bfloat16"}), PlannedEngine(flow="pytorch"))
    assert found.quant == "mxfp4"
    assert found.weights == pytest.approx(65_248_815_744, rel=0.001)


def test_a_latent_is_on_every_rank() -> None:
    """DeepSeek-V3: 512 + 64 elements per token and layer, whatever the ranks."""
    config = transformers.AutoConfig.for_model("deepseek_v3").to_dict() | {"architectures": ["DeepseekV3ForCausalLM"]}
    found = estimate(shape_of(config), PlannedEngine(flow="pytorch", tp=8))
    assert found.kv_per_token == found.kv_per_token_per_rank == 61 * 576 * 2


def test_a_quantized_checkpoint() -> None:
    """Its own quantization counts."""
    awq = estimated("Qwen2.5-7B-Instruct-AWQ", flow="pytorch")
    assert awq.quant == "awq"
    assert awq.weights < estimated("Qwen2.5-7B-Instruct").weights / 2
    assert estimated("Qwen2.5-7B-Instruct-AWQ", quant="awq") == estimated("Qwen2.5-7B-Instruct-AWQ")


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("tp", 0, "--tp-size"),
        ("pp", -1, "--pp-size"),
        ("max_batch_size", 0, "--max-batch-size"),
        ("max_seq_len", 0, "--max-seq-len"),
        ("kv_cache_free_gpu_mem_fraction", 1.0, "--kv-cache-free-gpu-mem-fraction"),
    ],
)
def test_options_without_meaning(option: str, value: float, named: str) -> None:
    with pytest.raises(BuildError, match=named):
        estimated("Qwen2-0.5B", **{option: value})


models = st.sampled_from(NAMES)
sizes = st.integers(1, 300)


@st.composite
def plans(draw: st.DrawFn) -> PlannedEngine:
    return PlannedEngine(
        flow=draw(st.sampled_from(("tensorrt", "pytorch"))),
        quant=draw(st.sampled_from((None, *QUANTIZATIONS))),
        kv_cache_dtype=draw(st.sampled_from(("auto", "fp8", "int8", "nvfp4"))),
        tp=draw(st.sampled_from((1, 2, 4, 8, 16))),
        pp=draw(st.integers(1, 8)),
        max_batch_size=draw(sizes),
        max_seq_len=draw(sizes) * 100,
        max_beam_width=draw(st.integers(1, 4)),
        kv_cache_free_gpu_mem_fraction=draw(st.floats(0.1, 0.99)),
        gpu=draw(st.sampled_from(GPUS)),
    )


@settings(max_examples=150, deadline=None)
@given(models, plans(), sizes)
def test_larger_limits_and_more_ranks(name: str, options: PlannedEngine, more: int) -> None:
    shape = published_models.shape(name)
    before = estimate(shape, options)
    for limit in ("max_seq_len", "max_beam_width"):
        larger = estimate(shape, msgspec.structs.replace(options, **{limit: getattr(options, limit) + more}))
        assert (larger.batch_full or 0) <= (before.batch_full or 0)
        assert (larger.kv_tokens, larger.weights) == (before.kv_tokens, before.weights)
    for ranks in ({"tp": options.tp * 2}, {"pp": options.pp + 1}):
        spread = estimate(shape, msgspec.structs.replace(options, **ranks))
        assert spread.weights_per_rank <= before.weights_per_rank
        assert spread.kv_per_token_per_rank <= before.kv_per_token_per_rank
        assert spread.weights >= before.weights  # what is copied, is so once more
        assert spread.kv_per_token == before.kv_per_token


@settings(max_examples=150, deadline=None)
@given(models, plans())
def test_sums_add_up(name: str, options: PlannedEngine) -> None:
    shape = published_models.shape(name)
    found = estimate(shape, options)
    assert options.gpu is not None
    assert found.kv_pool is not None
    assert found.kv_tokens is not None
    assert found.batch_full is not None
    assert found.weights_per_rank <= found.weights <= found.weights_per_rank * options.ranks
    assert found.kv_per_token <= found.kv_per_token_per_rank * options.ranks
    assert found.kv_tokens * found.kv_per_token_per_rank <= found.kv_pool <= options.gpu.memory_bytes
    assert found.batch_full * options.max_seq_len * options.max_beam_width <= found.kv_tokens
    plain = estimate(msgspec.structs.replace(shape, quantization=""), msgspec.structs.replace(options, quant=None))
    assert found.weights <= plain.weights


@pytest.mark.parametrize("gpu", [None, H100], ids=["any", "H100"])
def test_the_lines_of_an_estimate(gpu: Any) -> None:
    options = PlannedEngine(gpu=gpu, tp=2)
    found = estimate(published_models.shape("Qwen2.5-72B-Instruct"), options)
    told = list(lines(options, found))
    assert [line.split("  ")[1] for line in told] == [
        "weights",
        "margin",
        *(("KV cache", "tokens that fit", "largest batch") if gpu else ()),
    ]
    assert f"{found.weights_per_rank / GIB:.2f} GiB" in told[0]
    assert f"{MARGIN_BYTES / GIB:.2f} GiB" in told[1]
