"""Estimates, against logs of real engines that others have published, and against what must hold of any."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.builder.options.quantizations import QUANTIZATIONS
from openai_bls.builder.tensorrt_llm.memory.estimate import estimate
from openai_bls.builder.tensorrt_llm.memory.estimate_text import report
from openai_bls.builder.tensorrt_llm.memory.gpus import GIB, GPUS, Gpu, find_gpu
from openai_bls.builder.tensorrt_llm.memory.sizes import Estimate, PlannedEngine
from openai_bls.builder.tensorrt_llm.model.shapes import shape_of
from openai_bls.core.manifest import BuildError
from tests.unit.builder.tensorrt_llm import published_models
from tests.unit.builder.tensorrt_llm.published_models import NAMES

MIB = 1 << 20
H100 = find_gpu("H100")


def estimated(name: str, **options: Any) -> Estimate:
    return estimate(published_models.shape(name), PlannedEngine(**options))


def problems(name: str, **options: Any) -> str:
    return "\n".join(estimated(name, **options).problems)


# --- logs


def test_the_log_in_tensorrt_llms_documentation() -> None:
    """docs/source/reference/memory.md: a Llama 7B with FP8 weights and cache on an H100, with TensorRT-LLM's defaults.

    The log says 6695 MiB of engine file (6678 on the GPU), 1134.01 MiB of execution context, 43.29 and 180.30 MB of
    buffers and decoder, 79.10 GiB in all of which 70.48 were left, and 63.44 GiB for a cache of 259,840 tokens.
    """
    gpu = msgspec.structs.replace(H100, memory_mib=H100.memory_mib + round(79.10 * 1024 - H100.memory_bytes / MIB))
    assert gpu.memory_bytes / GIB == pytest.approx(79.10, abs=0.01)
    found = estimated(
        "Llama-2-7b-hf", quant="fp8", kv_cache_dtype="fp8", max_batch_size=2048, max_num_tokens=8192, gpu=gpu
    )
    assert found.weights_per_rank / MIB == pytest.approx(6678, rel=0.001)
    assert found.engine_on_disk / MIB == pytest.approx(6695, rel=0.01)
    assert found.activations / MIB == pytest.approx(1134.01, rel=0.1)
    assert found.decoder / 1e6 == pytest.approx(43.29 + 180.30, rel=0.2)
    assert found.gpu_memory / GIB == pytest.approx(79.10 - 70.48, rel=0.02)
    assert found.kv_pool is not None
    assert found.kv_tokens is not None
    assert found.kv_pool / GIB == pytest.approx(63.44, rel=0.01)
    assert found.kv_tokens == pytest.approx(259_840, rel=0.01)


def test_a_log_of_a_build() -> None:
    """TensorRT-LLM's examples/models/core/glm-4-9b: 11909 MiB on the GPU and 29706 on the host, of ChatGLM3-6B."""
    found = estimated("chatglm3-6b")
    assert found.weights / MIB == pytest.approx(11_909, rel=0.001)
    assert found.host_memory / MIB == pytest.approx(29_706, rel=0.01)


def test_logs_of_weights_and_caches() -> None:
    """TensorRT-LLM issues 1400 (SmoothQuant, 6683 MiB, 69524783104 bytes for 132608 tokens) and 6294 (52.51 GiB)."""
    smooth = estimated("Llama-2-7b-hf", quant="int8_sq", dtype="float16")
    assert smooth.weights_per_rank / MIB == pytest.approx(6683, rel=0.002)
    assert smooth.kv_per_token == 69_524_783_104 / 132_608
    half = estimated("Llama-3.1-8B", kv_cache_dtype="fp8")
    assert half.kv_per_token == pytest.approx(52.51 * GIB / 860_320, rel=0.001)


# --- weights and cache, worked out by hand


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
    assert any("2 ranks keep a copy of each" in note for note in found.notes)
    # Which 3 cannot: then the problem is told, and no note about copies that there are none of.
    odd = estimated("chatglm3-6b", tp=3)
    assert odd.problems
    assert not any("keep a copy" in note for note in odd.notes)


def test_stages() -> None:
    """Two stages: half of the layers each; with tied embeddings both ends hold the table."""
    found = estimated("Llama-2-7b-hf", pp=2)
    assert found.kv_per_token_per_rank * 2 == found.kv_per_token
    assert found.weights_per_rank == 2 * (32000 * 4096) + (2 * 6_738_415_616 - 4 * 32000 * 4096) / 2
    tied = estimated("Qwen2-0.5B", pp=2)
    assert tied.weights == 2 * (494_032_768 + 151_936 * 896)
    assert any("some hold one more" in note for note in estimated("Qwen2-0.5B", pp=5).notes)


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
    whole = estimate(msgspec.structs.replace(shape, dtype="float32"), PlannedEngine())
    assert (whole.checkpoint, whole.weights) == (4 * 6_738_415_616, 2 * 6_738_415_616)


def test_disk() -> None:
    """The checkpoint, the engine twice, and what ModelOpt writes down between, where it calibrates."""
    plain = estimated("Llama-2-7b-hf")
    assert plain.disk == plain.checkpoint + 2 * plain.engine_on_disk
    assert plain.checkpoint == 13_476_831_232
    quantized = estimated("Llama-2-7b-hf", quant="fp8", checkpoint_bytes=13_476_835_328)
    assert quantized.disk == 13_476_835_328 + 2 * quantized.engine_on_disk + quantized.weights
    assert quantized.build_gpu_memory > plain.weights > quantized.gpu_memory
    assert estimated("Llama-2-7b-hf", quant="int8_weight_only").build_gpu_memory < plain.weights
    loaded = estimated("Llama-2-7b-hf", flow="pytorch")
    assert loaded.engine_on_disk == 0
    assert loaded.disk == 2 * loaded.checkpoint


def test_logits_that_are_kept() -> None:
    plain, output = (estimated("Qwen2-0.5B", gather_logits=kept) for kept in (False, True))
    assert output.decoder == 9 * plain.decoder
    assert output.activations == plain.activations


def test_experts_in_mxfp4() -> None:
    """gpt-oss-120b: 65,248,815,744 bytes in the index of its files, of which its experts alone are quantized."""
    config = transformers.AutoConfig.for_model("gpt_oss").to_dict()
    config |= {"architectures": ["GptOssForCausalLM"], "quantization_config": {"quant_method": "mxfp4"}}
    found = estimate(shape_of(config | {"dtype": "bfloat16"}), PlannedEngine(flow="pytorch", gpu=H100))
    assert found.quant == "mxfp4"
    assert found.checkpoint == pytest.approx(65_248_815_744, rel=0.001)
    assert not found.problems


def test_a_latent_is_on_every_rank() -> None:
    """DeepSeek-V3: 512 + 64 elements per token and layer, whatever the ranks."""
    config = transformers.AutoConfig.for_model("deepseek_v3").to_dict() | {"architectures": ["DeepseekV3ForCausalLM"]}
    found = estimate(shape_of(config), PlannedEngine(flow="pytorch", tp=8))
    assert found.kv_per_token == found.kv_per_token_per_rank == 61 * 576 * 2


# --- problems and notes


def test_a_cache_below_one_sequence() -> None:
    text = problems("Llama-3.1-8B", gpu=find_gpu("L4"), max_seq_len=131_072)
    assert "less than one sequence of 131,072" in text
    assert "--kv-cache-dtype" in text
    text = problems("Llama-2-7b-hf", gpu=find_gpu("L4"), max_seq_len=4096, max_beam_width=8)
    assert "less than one sequence of 4,096 with 8 beams" in text
    windows = {"windows": (512, 4096), "max_tokens_in_kv_cache": 2048}
    text = problems("Llama-2-7b-hf", gpu=find_gpu("L4"), max_seq_len=4096, **windows)
    # 512 tokens, the 512 of a prompt that are beyond them, and 4,096: the mean.
    assert "one sequence of 4,096, of which the attention windows keep 2,560: raise --max-tokens-in-kv-cache" in text


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("Qwen2.5-7B-Instruct", {"tp": 8}, r"--tp-size 8 does not divide the 28 attention heads: give one of 1, 2, 4"),
        ("Qwen2-0.5B", {"tp": 4}, r"--tp-size 4 does not divide the 14 attention heads"),
        ("Qwen1.5-MoE-A2.7B", {"tp": 3}, r"give one of 1, 2, 4, 8, 16$"),
        ("Llama-2-7b-hf", {"pp": 33}, r"--pp-size 33 is more than the 32 layers"),
        ("Llama-2-7b-hf", {"quant": "gptq"}, r"--quant gptq: TensorRT-LLM's LLM API neither makes nor reads GPTQ"),
        ("Llama-2-7b-hf", {"quant": "fp8", "flow": "pytorch"}, r"--quant fp8 is for --flow tensorrt"),
        ("Qwen2.5-7B-Instruct-AWQ", {"quant": "fp8"}, r"quantized already \(awq\): leave --quant fp8 out"),
    ],
)
def test_refused_whatever_the_gpu(name: str, options: dict[str, Any], says: str) -> None:
    assert len(estimated(name, **options).problems) == 1
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(problems(name, **options))


def test_heads_that_do_not_divide() -> None:
    """6 heads of keys and values over 4 ranks."""
    shape = msgspec.structs.replace(published_models.shape("Llama-2-7b-hf"), heads=24, kv_heads=6)
    (problem,) = estimate(shape, PlannedEngine(tp=4)).problems
    assert "give a --tp-size that divides 6, or a multiple of it" in problem


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
    found = estimated("Qwen1.5-1.8B-Chat", gpu=find_gpu(gpu), **options)
    assert len(found.problems) == (says is not None)
    assert says is None or says in found.problems[0]


def test_a_quantized_checkpoint() -> None:
    """Its own quantization counts, on disk and in memory."""
    awq = estimated("Qwen2.5-7B-Instruct-AWQ", flow="pytorch")
    assert awq.quant == "awq"
    assert awq.checkpoint == awq.weights < estimated("Qwen2.5-7B-Instruct").weights / 2
    assert not awq.problems
    assert estimated("Qwen2.5-7B-Instruct-AWQ", quant="awq") == estimated("Qwen2.5-7B-Instruct-AWQ")


def test_a_quantized_cache_is_calibrated() -> None:
    """Of an engine, whatever its weights are."""
    plain = estimated("Llama-2-7b-hf", kv_cache_dtype="fp8")
    assert plain.disk == plain.checkpoint + 2 * plain.engine_on_disk + plain.weights


def test_notes() -> None:
    def notes(name: str, **options: Any) -> str:
        return "\n".join(estimated(name, **options).notes)

    assert "before Ampere" in notes("Qwen2-0.5B", gpu=find_gpu("T4"))
    assert "more than it has" not in notes("Llama-2-7b-hf", quant="awq", gpu=H100)
    assert "takes 155.7 GiB of each GPU, more than it has" in notes("Qwen2.5-72B-Instruct", quant="awq", gpu=H100)
    assert "look back at most 4,096 tokens" in notes("Mistral-7B-v0.1", max_seq_len=8192)
    assert notes("Mistral-7B-v0.1", max_seq_len=8192, windows=(4096,)) == ""
    assert notes("Mistral-7B-v0.1", max_seq_len=4096) == ""
    assert "of --max-batch-size 64 sequences" in notes("Llama-2-7b-hf", gpu=find_gpu("L4"))
    assert "builds nothing" in notes("Llama-2-7b-hf", flow="pytorch")


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


# --- what must hold of any

models = st.sampled_from(NAMES)
gpus = st.sampled_from(GPUS)
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
        max_input_len=draw(sizes),
        max_seq_len=draw(sizes) * 100,
        max_num_tokens=draw(sizes) * 64,
        max_beam_width=draw(st.integers(1, 4)),
        kv_cache_free_gpu_mem_fraction=draw(st.floats(0.1, 0.99)),
        gpu=draw(gpus),
        gather_logits=draw(st.booleans()),
    )


@settings(max_examples=150, deadline=None)
@given(models, plans(), st.sampled_from(("max_batch_size", "max_num_tokens", "max_beam_width")), sizes)
def test_larger_limits_and_more_ranks(name: str, options: PlannedEngine, limit: str, more: int) -> None:
    shape = published_models.shape(name)
    before = estimate(shape, options)
    after = estimate(shape, msgspec.structs.replace(options, **{limit: getattr(options, limit) + more}))
    assert after.gpu_memory >= before.gpu_memory
    assert after.build_gpu_memory >= before.build_gpu_memory
    assert (after.kv_tokens or 0) <= (before.kv_tokens or 0)
    assert after.weights == before.weights
    longer = estimate(shape, msgspec.structs.replace(options, max_seq_len=options.max_seq_len + more))
    assert (longer.batch_full or 0) <= (before.batch_full or 0)
    assert (longer.batch_half or 0) <= (before.batch_half or 0)
    assert longer.kv_tokens == before.kv_tokens
    for ranks in ({"tp": options.tp * 2}, {"pp": options.pp + 1}):
        spread = estimate(shape, msgspec.structs.replace(options, **ranks))
        assert spread.weights_per_rank <= before.weights_per_rank
        assert spread.kv_per_token_per_rank <= before.kv_per_token_per_rank
        assert spread.activations <= before.activations
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
    assert found.batch_half is not None
    assert found.weights_per_rank <= found.weights <= found.weights_per_rank * options.ranks
    assert found.kv_per_token <= found.kv_per_token_per_rank * options.ranks
    assert found.kv_tokens * found.kv_per_token_per_rank <= found.kv_pool <= options.gpu.memory_bytes
    assert found.batch_full * options.max_seq_len * options.max_beam_width <= found.kv_tokens
    assert found.batch_full <= found.batch_half
    if not found.problems:
        assert found.gpu_memory + found.kv_pool <= options.gpu.memory_bytes
        assert found.batch_full >= 1 or found.kv_tokens < options.max_seq_len * options.max_beam_width + 32
    plain = estimate(msgspec.structs.replace(shape, quantization=""), msgspec.structs.replace(options, quant=None))
    assert found.weights <= plain.weights


# --- the text


def test_the_text_of_a_plan() -> None:
    shape = published_models.shape("Qwen2.5-72B-Instruct")
    options = PlannedEngine(quant="fp8", tp=4, max_seq_len=40_000, gpu=find_gpu("A100-80GB"))
    text = report(shape, options, estimate(shape, options), model="Qwen/Qwen2.5-72B-Instruct")
    assert text.splitlines()[:20] == [
        "Qwen/Qwen2.5-72B-Instruct: 72.71 billion parameters, Qwen2ForCausalLM",
        "  model   80 layers of 8,192, MLP 29,568, 64 heads of 128, 8 of keys and values, vocabulary 152,064,",
        "          32,768 positions",
        "  engine  tensorrt flow, bfloat16 with fp8 weights, on 4 GPUs (tp 4 × pp 1): A100-80GB, 79.30 GiB",
        "          each",
        "  limits  64 sequences of 40,000 tokens, prompts of 1,024, 8,192 tokens per step",
        "",
        "Memory of each GPU",
        "  weights                    17.51 GiB  70.05 GiB in all",
        "  activations                 1.03 GiB  allowance",
        "  decoder, logits             0.04 GiB  allowance",
        "  runtime                     1.40 GiB  allowance: CUDA context, kernels, NCCL",
        "  KV cache                   53.39 GiB  90% of what is left",
        "",
        "KV cache",
        "  per token                    320 KiB  80 KiB on each GPU",
        "  tokens that fit              699,712",
        "  largest batch                     17  of 40,000 tokens each",
        "                                    34  of 20,000 tokens each",
        "",
    ]
    assert "Problems\n  - A100-80GB (8.0) does not compute in fp8" in text
    assert "Notes\n  - of --max-batch-size 64 sequences, 17 fit at full length" in text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gpu", [None, H100], ids=["any", "H100"])
def test_every_plan_reads_well(name: str, gpu: Gpu | None) -> None:
    """Narrow enough, numbers under each other, every sentence there, nothing left unsaid."""
    shape = published_models.shape(name)
    options = PlannedEngine(gpu=gpu, tp=1 if gpu else 2, flow="tensorrt" if gpu else "pytorch")
    found = estimate(shape, options)
    text = report(shape, options, found)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert text.endswith("\n")
    assert lines == [line.rstrip() for line in lines]
    plan = text.split("\n\n", 1)[1].split("\n\nProblems")[0].split("\n\nNotes")[0].splitlines()
    rows = [line for line in plan if line.startswith("  ") and not re.match(r"  fits on| {10}\S", line)]
    assert len(rows) >= 9
    for line in rows:  # a label, a number that ends in column 38, a remark
        assert re.fullmatch(r" *[\d.,]+( [GMK]iB)?", line[28:38]), line
        assert line[38:40] in ("", "  "), line
    words = " ".join(text.split())
    assert all(" ".join(sentence.split()) in words for sentence in (*found.problems, *found.notes))
    assert "None" not in text
    assert ("largest batch" in text) == (gpu is not None)


def test_gpus_that_would_do() -> None:
    """Without a GPU the plan says which of the known ones would run it."""
    found = estimated("CodeLlama-13b-hf")
    assert found.kv_pool is found.kv_tokens is found.batch_full is None
    assert found.fits is not None
    assert set(found.fits) == {gpu.name for gpu in GPUS if not estimated("CodeLlama-13b-hf", gpu=gpu).problems}
    assert "A100-40GB" in found.fits
    assert "L4" not in found.fits
    shape = published_models.shape("CodeLlama-13b-hf")
    assert "fits on A40, A100-40GB" in " ".join(report(shape, PlannedEngine(), found).split())
    assert "fits on" not in report(shape, PlannedEngine(tp=3), estimate(shape, PlannedEngine(tp=3)))
