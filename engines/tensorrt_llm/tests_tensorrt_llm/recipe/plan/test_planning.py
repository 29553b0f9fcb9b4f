"""Plans: lengths, flows, and what stands against them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.options.lora import LoraOptions
from openai_bls.core.machine import nvidia_smi
from openai_bls.core.machine.nvidia_smi import InstalledGpu
from openai_bls.core.manifest import BuildError
from openai_bls.core.settings import EngineSettings
from openai_bls_tensorrt_llm.installed.interface import Flow, Version
from openai_bls_tensorrt_llm.recipe.gpus import GIB, find_gpu
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions
from openai_bls_tensorrt_llm.recipe.plan.planning import Plan, Request, as_gpu, described, gpu_for, plan
from tests.paths import ROOT
from tests_tensorrt_llm.recipe import published_models

DEMO: dict[str, Any] = json.loads((ROOT / "demo" / "checkpoint" / "config.json").read_text())


def plan_of(
    config: dict[str, Any] = DEMO,
    own: TensorRtLlmOptions | None = None,
    version: str = "1.2.1",
    *,
    request: Request | None = None,
) -> Plan:
    return plan(request or asked(config, own), Version.parse(version), find_gpu("H100"))


def asked(config: dict[str, Any], own: TensorRtLlmOptions | None = None, **others: Any) -> Request:
    options = BuildOptions("someone/model", Path(), "tensorrt_llm", own=own or TensorRtLlmOptions(), **others)
    return Request(options=options, config=config)


YAML: dict[str, Any] = {"print_iter_log": True}
NGRAM: dict[str, Any] = {"decoding_type": "NGram", "max_draft_len": 3, "max_matching_ngram_size": 2}


@pytest.mark.parametrize(
    ("own", "version", "flow", "said"),
    [
        (TensorRtLlmOptions(), "0.20.0", "tensorrt", ""),
        (TensorRtLlmOptions(), "1.1.0", "tensorrt", ""),
        (TensorRtLlmOptions(), "1.2.1", "pytorch", "is the default from TensorRT-LLM 1.2 on; --flow tensorrt builds"),
        (TensorRtLlmOptions(), "1.3.0", "pytorch", ""),
        (TensorRtLlmOptions(flow="tensorrt"), "1.2.1", "tensorrt", ""),
        (TensorRtLlmOptions(flow="pytorch"), "1.1.0", "pytorch", ""),
        (TensorRtLlmOptions(quant="fp8"), "1.1.0", "tensorrt", ""),
        (TensorRtLlmOptions(quant="fp8"), "1.2.1", "tensorrt", "from TensorRT-LLM 1.2 on, and --quant is for --flow"),
        (TensorRtLlmOptions(backend="cpp"), "1.2.1", "tensorrt", "and --backend cpp is for --flow tensorrt"),
        (TensorRtLlmOptions(extra_llm_api_options=YAML), "1.1.0", "pytorch", ""),
        (TensorRtLlmOptions(extra_llm_api_options=YAML), "1.2.1", "pytorch", ""),
    ],
)
def test_flow(own: TensorRtLlmOptions, version: str, flow: str, said: str) -> None:
    made = plan_of(own=own, version=version)
    assert made.engine.flow == flow
    notes = [note for note in made.notes if "--flow pytorch is the default" in note]
    assert len(notes) == bool(said)
    assert said in "".join(notes)
    assert made.refusals == ()


def test_a_model_that_only_engines_have() -> None:
    config = published_models.config("Baichuan2-7B-Chat")
    request = asked(config, trust_remote_code=True)
    made = plan(request, Version(1, 2, 1), find_gpu("H100"))
    assert made.engine.flow == "tensorrt"
    assert "--flow pytorch is the default from TensorRT-LLM 1.2 on" in made.notes[0]
    assert plan(request, Version(1, 3), find_gpu("H100")).engine.flow == "pytorch"


@pytest.mark.parametrize("flow", [None, "tensorrt"])
def test_options_of_both_flows(flow: Flow | None) -> None:
    own = TensorRtLlmOptions(flow=flow, quant="fp8", extra_llm_api_options=YAML)
    with pytest.raises(BuildError, match=r"--extra-llm-api-options .*--flow pytorch"):
        plan_of(own=own)


@pytest.mark.parametrize(
    ("options", "values", "version", "said"),
    [
        ({"pipeline_parallel_size": 2}, {}, "1.2.1", "(NGram) does not go with --pp-size"),
        ({"max_beam_width": 2}, {}, "1.2.1", "does not go with --max-beam-width"),
        ({"settings": EngineSettings(guided_decoding_backend="xgrammar")}, {}, "1.0.0", "grammars from 1.1 on"),
        ({"settings": EngineSettings(guided_decoding_backend="xgrammar")}, {}, "1.1.0", ""),
        ({}, {"decoding_type": "Medusa"}, "1.2.1", "decoding_type in --extra-llm-api-options is 'Medusa' (it is for"),
        ({}, {}, "0.20.0", "serves checkpoints by PyTorch as an experiment only"),
    ],
)
def test_speculative_decoding(options: dict[str, Any], values: dict[str, Any], version: str, said: str) -> None:
    own = TensorRtLlmOptions(extra_llm_api_options={"speculative_config": NGRAM | values}, **options)
    problems = plan_of(own=own, version=version).problems
    assert len(problems) == bool(said)
    assert said in "".join(problems)


def test_speculative_decoding_with_adapters() -> None:
    own = TensorRtLlmOptions(extra_llm_api_options={"speculative_config": NGRAM})
    found = plan_of(request=asked(DEMO, own, lora=LoraOptions(max_loras=2, max_lora_rank=8)))
    assert "--lora-dir" in "".join(found.problems)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (TensorRtLlmOptions(quant="fp8"), "--quant .*--flow tensorrt"),
        (TensorRtLlmOptions(kv_cache_dtype="int8"), "--kv-cache-dtype int8 .*--flow tensorrt"),
        (TensorRtLlmOptions(backend="cpp"), "--backend cpp .*--flow tensorrt"),
    ],
)
def test_options_without_a_meaning_for_the_flow_there_is(own: TensorRtLlmOptions, said: str) -> None:
    """Which was left open, and comes of the installed version."""
    assert plan_of(own=own).engine.flow == "tensorrt"
    with pytest.raises(BuildError, match=said):
        plan_of(own=own, version="1.3.0")


def test_a_model_of_unknown_size(capsys: pytest.CaptureFixture[str]) -> None:
    """It is planned without an estimate where TensorRT-LLM takes the family all the same."""
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_position_embeddings": 512}
    made = plan_of(config)
    assert (made.estimate, made.engine.max_seq_len, made.problems) == (None, 512, ())
    text = described(asked(config), made)
    assert "pytorch flow on 1 GPU of H100" in text
    assert "\n  - no estimate: config.json has no usable" in text


def test_every_sentence_is_under_its_heading() -> None:
    own = TensorRtLlmOptions(quant="awq", workers=3, plugins={"gemm": "auto"}, max_num_tokens=100)
    foreign = published_models.config("Qwen3-8B")
    made = plan_of(foreign, own)
    assert made.estimate is not None
    text = " ".join(described(asked(foreign, own), made).split())
    problems, notes = text.partition(" Problems - ")[2].split(" Notes - ")
    assert problems == " - ".join(made.problems)
    assert notes == " - ".join(made.notes)
    assert [sentence.split()[0] for sentence in made.problems] == ["--workers", "TensorRT-LLM"]
    assert [sentence.split()[0] for sentence in made.notes] == ["--flow", "TensorRT-LLM", "prompts", "awq", "of"]


FP8_CONTEXT = {"use_fp8_context_fmha": "enable"}
LLGUIDANCE = EngineSettings(guided_decoding_backend="llguidance")


@pytest.mark.parametrize(
    ("own", "version", "said"),
    [
        # What the version would refuse in the middle of the build.
        (TensorRtLlmOptions(plugins={"gemm_plugin": "int2"}), "0.20.0", "plugin option gemm_plugin is 'int2': give"),
        (TensorRtLlmOptions(plugins={"use_custom_all_reduce": "enable"}), "1.0.0", "chooses the all-reduce by itself"),
        (TensorRtLlmOptions(kv_cache_dtype="nvfp4", flow="pytorch"), "1.2.1", "give one of auto, fp8"),
        (TensorRtLlmOptions(workers=3), "1.2.1", "--workers 3 cannot be had"),
        # What would have no effect.
        (TensorRtLlmOptions(calib_size=5), "1.2.1", "--calib-size 5 has no effect here: only --quant fp8, "),
        (TensorRtLlmOptions(calib_size=5, quant="int8_weight_only"), "1.2.1", "--calib-size 5 has no effect"),
        (TensorRtLlmOptions(calib_dataset="cnn_dailymail"), "1.2.1", "--calib-dataset cnn_dailymail has no effect"),
        (TensorRtLlmOptions(plugins=FP8_CONTEXT), "1.2.1", "turns it off unless --quant is fp8, "),
        (TensorRtLlmOptions(plugins=FP8_CONTEXT, quant="fp8"), "1.2.1", "turns it off unless the KV cache is in fp8"),
        (
            TensorRtLlmOptions(plugins=FP8_CONTEXT | {"context_fmha": "disable"}, quant="fp8", kv_cache_dtype="fp8"),
            "1.2.1",
            "turns it off together with context_fmha",
        ),
        (TensorRtLlmOptions(flow="tensorrt", settings=LLGUIDANCE), "1.2.1", "give xgrammar, or --flow pytorch"),
        (TensorRtLlmOptions(settings=LLGUIDANCE, backend="cpp"), "1.2.1", "give xgrammar, the only one"),
    ],
)
def test_what_is_refused_whatever_the_model(own: TensorRtLlmOptions, version: str, said: str) -> None:
    made = plan_of(own=own, version=version)
    (refusal,) = made.refusals
    assert said in refusal
    assert refusal in made.problems


@pytest.mark.parametrize(
    "own",
    [
        TensorRtLlmOptions(calib_size=5, calib_dataset="cnn_dailymail", quant="awq"),
        TensorRtLlmOptions(calib_dataset="cnn_dailymail", kv_cache_dtype="int8"),
        TensorRtLlmOptions(plugins={"use_fp8_context_fmha": "enable"}, quant="fp8", kv_cache_dtype="fp8"),
        TensorRtLlmOptions(
            plugins={"use_fp8_context_fmha": "enable", "use_paged_context_fmha": "disable"}, quant="w4a8_awq"
        ),
        TensorRtLlmOptions(plugins={"use_fp8_context_fmha": "disable"}),
        TensorRtLlmOptions(settings=EngineSettings(guided_decoding_backend="xgrammar"), backend="cpp"),
        TensorRtLlmOptions(settings=EngineSettings(guided_decoding_backend="llguidance"), flow="pytorch"),
    ],
)
def test_options_with_an_effect(own: TensorRtLlmOptions) -> None:
    made = plan_of(own=own)
    assert (made.refusals, made.problems) == ((), ())


def test_a_quantized_checkpoint_is_not_calibrated() -> None:
    told = {"quant_method": "modelopt", "told_by": "hf_quant_config.json", "quant_algo": "FP8"}
    config = published_models.config("Qwen2.5-7B-Instruct") | {"quantization_config": told}
    (refusal,) = plan_of(config, TensorRtLlmOptions(calib_size=5, kv_cache_dtype="fp8")).refusals
    assert refusal == "--calib-size 5 has no effect here: the checkpoint is quantized already; leave it out"
    own = TensorRtLlmOptions(plugins={"use_fp8_context_fmha": "enable"}, kv_cache_dtype="fp8")
    assert plan_of(config, own).problems == ()


def test_a_quantized_checkpoint() -> None:
    """As the flow takes it; with its own KV cache."""
    awq = published_models.config("Qwen2.5-7B-Instruct-AWQ")
    (problem,) = plan_of(awq).problems
    assert "quantized already, as AutoAWQ" in problem
    told = {"quant_method": "modelopt", "told_by": "hf_quant_config.json", "quant_algo": "FP8"}
    plain = published_models.config("Qwen2.5-7B-Instruct")
    own, cached = (
        plan_of(plain | {"quantization_config": told | {"kv_cache_quant_algo": cache}}) for cache in (None, "FP8")
    )
    assert own.problems == cached.problems == ()
    assert own.estimate is not None
    assert cached.estimate is not None
    assert own.estimate.quant == "fp8"
    assert own.estimate.kv_per_token == 2 * cached.estimate.kv_per_token
    (problem,) = plan_of(plain | {"quantization_config": told}, TensorRtLlmOptions(kv_cache_dtype="int8")).problems
    assert "--kv-cache-dtype int8 needs scales" in problem


def test_the_file_of_modelopt_is_missed_where_the_folder_is_seen(tmp_path: Path) -> None:
    told = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}
    request = asked(published_models.config("Qwen2.5-7B-Instruct") | told)
    assert plan(request, Version(1, 2, 1), None).problems == ()
    (problem,) = plan(msgspec.structs.replace(request, folder=tmp_path), Version(1, 2, 1), None).problems
    assert "hf_quant_config.json" in problem


def test_the_gpu_of_an_estimate() -> None:
    installed = [InstalledGpu("NVIDIA L4", "8.9", 23034 << 20)]
    assert gpu_for("A30", None, installed).name == "A30"
    found = gpu_for(None, None, installed)
    assert (found.name, found.memory_mib, found.compute_capability) == ("NVIDIA L4", 23034, (8, 9))
    assert gpu_for(None, None, []).name == "H100"
    assert gpu_for("abacus", "16GB", installed).memory_mib == 16384
    # Nothing is taken off twice: nvidia-smi's number is that of the table.
    [listed] = nvidia_smi.parse("0, GPU-0, NVIDIA H100 80GB HBM3, 81559, 9.0", None)
    assert as_gpu(listed).memory_bytes == find_gpu("H100").memory_bytes == (81559 << 20) - 7 * GIB // 10
    with pytest.raises(BuildError, match="'abacus'"):
        gpu_for("abacus", None, [])
