"""The command line: what it refuses by name, and --dry-run."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.options.lora import LoraOptions
from openai_bls.commands.building import command as build_command
from openai_bls.commands.main import parse
from openai_bls.core import guide_names
from openai_bls.core.manifest import BuildError
from openai_bls.core.settings import EngineSettings
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions
from openai_bls_transformers.recipe.engine_build import EmbeddedOptions
from tests.paths import ROOT
from tests.unit.builder.builds import build_main
from tests.unit.builder.repositories import contents, make_adapter, make_repository
from tests_tensorrt_llm.recipe.build_support import Machine, make_checkpoint


def asked(arguments: Sequence[str]) -> Any:
    return build_command.wanted(parse("build", arguments))


def wanted(*arguments: str) -> BuildOptions:
    options = asked(["--engine", "tensorrt_llm", *arguments]).options
    assert isinstance(options, BuildOptions)
    return options


def test_every_option(tmp_path: Path) -> None:
    adapters = [make_adapter(tmp_path / name) for name in ("french", "other")]
    options = wanted("--model", "m", "--model-repository", "r", "--name", "small", "--served-model-name", "n",
        "--trust-remote-code", "--force", "--dtype", "float16", "--max-input-len", "5", "--max-output-len", "6",
        "--max-batch-size", "7", "--max-num-tokens", "8", "--max-beam-width", "2", "--tp-size", "3", "--pp-size", "4",
        "--quant", "SmoothQuant", "--kv-cache-dtype", "int8", "--calib-dataset", str(tmp_path), "--calib-size", "9",
        "--flow", "tensorrt", "--backend", "cpp", "--workers", "2", "--gemm-plugin", "auto",
        "--gpt-attention-plugin", "float16", "--paged-context-fmha", "enable", "--use-fp8-context-fmha", "disable",
        "--use-custom-all-reduce", "--multiple-profiles", "--gather-logits", "--plugin", "nccl_plugin=float16",
        "--workspace", "w", "--keep-workspace", "--lora-dir", str(adapters[0]), "--lora-dir", f"law={adapters[1]}",
        "--max-loras", "3", "--max-lora-rank", "16", "--max-tokens-in-kv-cache", "10",
        "--kv-cache-free-gpu-mem-fraction", "0.5",
        "--kv-cache-host-memory-bytes", "11", "--no-enable-kv-cache-reuse", "--enable-chunked-context",
        "--max-attention-window-size", "12,13", "--batch-scheduler-policy", "max_utilization",
        "--guided-decoding-backend", "xgrammar", "--max-queue-delay", "14", "--max-queue-size", "15",
        "--cpp-parameter", "decoding_mode=top_k",
    )  # fmt: skip
    own = options.own_as(TensorRtLlmOptions)
    assert (options.model, options.model_repository, options.name) == ("m", Path("r"), "small")
    assert (options.served_model_name, options.dtype, options.max_batch_size) == ("n", "float16", 7)
    assert options.trust_remote_code
    assert options.force
    assert (own.max_input_len, own.max_output_len, own.max_num_tokens, own.max_beam_width) == (5, 6, 8, 2)
    assert (own.tensor_parallel_size, own.pipeline_parallel_size, own.workers) == (3, 4, 2)
    assert (own.quant, own.kv_cache_dtype, own.calib_dataset, own.calib_size) == ("int8_sq", "int8", str(tmp_path), 9)
    assert (own.flow, own.backend) == ("tensorrt", "cpp")
    assert own.plugins == {
        "gemm_plugin": "auto",
        "gpt_attention_plugin": "float16",
        "use_paged_context_fmha": "enable",
        "use_fp8_context_fmha": "disable",
        "use_custom_all_reduce": "enable",
        "nccl_plugin": "float16",
    }
    assert own.multiple_profiles
    assert own.gather_logits
    assert own.keep_workspace
    assert own.workspace == Path("w")
    assert options.lora == LoraOptions({"french": adapters[0], "law": adapters[1]}, 3, 16)
    assert own.settings == EngineSettings(
        kv_cache_free_gpu_mem_fraction=0.5,
        max_tokens_in_paged_kv_cache=10,
        kv_cache_host_memory_bytes=11,
        enable_kv_cache_reuse=False,
        max_attention_window_size="12,13",
        enable_chunked_context=True,
        batch_scheduler_policy="max_utilization",
        guided_decoding_backend="xgrammar",
    )
    assert own.queue is not None
    assert (own.queue.max_queue_delay_microseconds, own.queue.max_queue_size) == (14, 15)
    assert own.cpp_parameters == {"decoding_mode": "top_k"}


def test_fp8_with_the_embedded_engine() -> None:
    assert asked(["--engine", "transformers", "--quant", "FP8"]).options.own == EmbeddedOptions("fp8")


def test_every_option_is_tried_above() -> None:
    """A new one must be added there, and to `options`."""
    parser = parse("build", []).parser
    tried = Path(__file__).read_text().partition("def test_every_option(")[2].partition("# fmt: skip")[0]
    elsewhere = {
        "--help", "--remove", "--dry-run", "--gpu", "--gpu-memory", "--max-seq-len", "--engine",
        "--no-self-test", "--extra-llm-api-options", "--revision", "--extra-engine-args", "--engine-python",
        "--max-images", "--task",
    }  # fmt: skip
    for action in parser._actions:
        assert elsewhere & set(action.option_strings) or any(f'"{name}"' in tried for name in action.option_strings)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--engine transformers --pp-size 2", "--pp-size is for --engine tensorrt_llm and vllm"),
        ("--engine transformers --tp-size 2 --model m", "`openai-bls build --engine vllm --tp-size 2 --model m`"),
        ("--engine transformers --quant int8_sq", "--quant int8_sq is for other engines"),
        ("--engine null --tp-size 2", "--tp-size is for --engine tensorrt_llm, transformers and vllm"),
        ("--engine null --no-self-test", "--no-self-test is for --engine llama_cpp, transformers and vllm"),
        ("--engine null --quant fp8", "--quant is for --engine tensorrt_llm"),
        ("--flow pytorch --quant fp8", "--quant is for --flow tensorrt"),
        ("--flow pytorch --gather-logits", "--gather-logits is for --flow tensorrt"),
        ("--flow pytorch --gemm-plugin auto", "--gemm-plugin is for --flow tensorrt"),
        ("--flow pytorch --backend cpp", "--backend cpp runs engines of --flow tensorrt only"),
        ("--flow pytorch --kv-cache-dtype int8", "--kv-cache-dtype int8 is for --flow tensorrt"),
        ("--flow tensorrt --kv-cache-dtype nvfp4", "--kv-cache-dtype nvfp4 is for --flow pytorch"),
        ("--quant gptq", "--quant gptq: "),
        ("--quant W8A16-GPTQ", "--quant W8A16-GPTQ: "),
        ("--quant fp8_block", "--quant fp8_block: "),
        ("--quant int3", "--quant int3 is not known"),
        ("--max-queue-delay 5", "--max-queue-delay is for --backend cpp"),
        ("--cpp-parameter a=b", "--cpp-parameter is for --backend cpp"),
        ("--calib-dataset ./nowhere --quant fp8", "--calib-dataset ./nowhere is neither a directory"),
        ("--calib-dataset my_texts --quant fp8", "--calib-dataset my_texts is neither a directory"),
        ("--tp-size 0", "--tp-size: "),
        ("--max-num-tokens -1", "--max-num-tokens: "),
        ("--kv-cache-free-gpu-mem-fraction 1.0", "--kv-cache-free-gpu-mem-fraction: "),
        ("--max-attention-window-size 10,x", "--max-attention-window-size: "),
        ("--max-attention-window-size 0", "--max-attention-window-size: "),
        ("--max-queue-size -1 --backend cpp", "--max-queue-size -1 is negative"),
        ("--plugin gemm_plugin", "--plugin gemm_plugin is not NAME=VALUE"),
        ("--plugin a=1 --plugin a=2", "--plugin a is given twice"),
        ("--plugin gemm_plugin=auto --gemm-plugin auto", "--plugin gemm_plugin is given by an option of its own"),
        ("--lora-dir ./nowhere", "--lora-dir nowhere is no adapter"),
        ("--max-lora-rank 8", "--max-lora-rank is for adapters"),
        ("--max-loras 0", "--max-loras 0: "),
        ("--keep-workspace", "--keep-workspace needs --workspace DIR"),
        ("--extra-llm-api-options ./nowhere.yaml", "--extra-llm-api-options nowhere.yaml cannot be read: "),
    ],
)
def test_options_without_a_meaning(arguments: str, said: str) -> None:
    given = arguments.split()
    with pytest.raises(BuildError) as caught:
        asked(given if "--engine" in given else ["--engine", "tensorrt_llm", *given])
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--gpu", "H100"],
        ["--gpu-memory", "16GB"],
        ["--quan", "fp8"],
        ["--remove", "a", "--dry-run"],
        ["--multiple-profiles", "perhaps"],
        ["--flow", "onnx"],
        ["--no_such_thing"],
    ],
)
def test_arguments_that_are_none(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        asked(arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--use_weight_only", "--quant int8_weight_only, or int4_weight_only"),
        ("--smoothquant=0.5", "--quant int8_sq"),
        ("--use_custom_all_reduce disable", "TensorRT-LLM chooses the all-reduce by itself"),
        ("--max_batch_size 4", "--max-batch-size"),
    ],
)
def test_options_of_guides(capsys: pytest.CaptureFixture[str], arguments: str, said: str) -> None:
    """Each is refused with what stands for it here, which there is."""
    with pytest.raises(SystemExit):
        asked(arguments.split())
    assert said in capsys.readouterr().err
    known = {option for action in parse("build", []).parser._actions for option in action.option_strings}
    for name, instead in guide_names.BUILD.items():
        assert name not in known
        assert set(re.findall(r"--[a-z][a-z0-9_-]*", instead)) <= known


@pytest.mark.parametrize(
    ("gpus", "installed", "engine", "said"),
    [
        (True, True, "tensorrt_llm", "it is installed, and there is a GPU (NVIDIA H100 80GB HBM3)"),
        (False, True, "transformers", "TensorRT-LLM is installed, but there is no GPU"),
        (True, False, "transformers", "TensorRT-LLM is not installed"),
    ],
)
def test_auto(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, engine: str, said: str, *, gpus: bool, installed: bool
) -> None:
    if not gpus:
        machine.install_gpus()
    if not installed:
        monkeypatch.setattr(sys, "path", [path for path in sys.path if "trtllm_package" not in path])
    found = asked([])
    assert found.options.engine == engine
    assert found.reason == f"engine {engine}: {said}"
    assert asked(["--model", "smollm2"]).options.engine == "llama_cpp"


def test_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a checkpoint without weights, without GPU and TensorRT-LLM; nothing is written."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes((ROOT / "demo" / "checkpoint" / "config.json").read_bytes())
    repository = make_repository(tmp_path / "model_repository")
    before = contents(tmp_path)
    arguments = ["--model", str(folder), "--model-repository", str(repository), "--dry-run", "--gpu", "L40S"]
    assert build_main([*arguments, "--max-seq-len", "1024"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("TensorRT-LLM is not installed: planned for 1.2.1 and the table of models\n")
    assert "there is no GPU here" not in said
    assert "4.33 million parameters" in said
    assert "L40S" in said
    assert "1,024 tokens" in said
    assert build_main([*arguments, "--tp-size", "3"]) == 1
    assert "--tp-size 3 " in capsys.readouterr().out
    assert build_main([*arguments, "--plugin", "gemm_plugins=auto", "--workers", "3"]) == 1
    problems = capsys.readouterr().out.partition("\nProblems\n")[2].partition("\nNotes\n")[0]
    assert "plugin option gemm_plugins: there is gemm_plugin" in " ".join(problems.split())
    assert "--workers 3 cannot be had" in problems
    # What leaves nothing to estimate stands under the same heading.
    assert build_main([*arguments, "--max-seq-len", "8", "--max-output-len", "9"]) == 1
    captured = capsys.readouterr()
    assert captured.out.partition("\nProblems\n  - ")[2].startswith("--max-output-len and --max-seq-len")
    assert not captured.err
    assert build_main(["--dry-run", "--engine", "null"]) == 2
    assert "engine null " in capsys.readouterr().err
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is no YAML: while parsing a flow node"),
        ("- a", "has no mapping of names to values"),
        ("", "has no mapping of names to values"),
        ("{a: {null: 1}}", "has a value that no argument is: "),
    ],
)
def test_files_that_are_no_options(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "options.yaml"
    path.write_text(text)
    with pytest.raises(BuildError) as caught:
        wanted("--extra-llm-api-options", str(path))
    assert str(caught.value).startswith(f"--extra-llm-api-options {path} {said}")


def test_dry_run_of_extra_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the version that is taken for granted, which the first line says."""
    path = tmp_path / "options.yaml"
    arguments = ["--dry-run", "--gpu", "L40S", "--max-seq-len", "1024", "--extra-llm-api-options", str(path)]
    path.write_text("speculative_config: {decoding_type: NGram, max_draft_len: 4, max_matching_ngram_size: 3}")
    assert build_main(arguments) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "planned for 1.2.1" in said
    assert "with speculative_config, requests with penalties" in said
    path.write_text("max_draft_len: 4")
    assert build_main(arguments) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "max_draft_len in --extra-llm-api-options: it belongs into speculative_config; known for TorchLlmArgs" in said
    )


def test_dry_run_asks_the_installed_version(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make_checkpoint(tmp_path / "own", architectures=["GptOssForCausalLM"])
    arguments = ["--model", str(source), "--dry-run", "--flow", "pytorch"]
    assert build_main(arguments) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("TensorRT-LLM 1.2.1 ")
    assert "GptOssForCausalLM is not in the table of models: " in said
    assert build_main([*arguments[:-1], "tensorrt"]) == 1
    assert "has no GptOssForCausalLM in --flow tensorrt: use --flow pytorch" in " ".join(
        capsys.readouterr().out.split()
    )
    machine.set(FAKE_TENSORRT_LLM_FAIL="import:library")
    assert build_main(arguments) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("TensorRT-LLM could not be asked: planned for 1.2.1 and the table of models (TensorR")
    assert "libnvinfer.so.10" in said


def test_a_hub_id_needs_its_configuration_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def download(model: str, allow_patterns: list[str], revision: str | None, **_: object) -> str:
        assert revision is None
        asked.append((model, allow_patterns))
        return str(ROOT / "demo" / "checkpoint")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr(build_command, "visible_gpus", list)
    assert build_main(["--model", "someone/tiny", "--dry-run"]) == 0
    assert asked == [("someone/tiny", ["config.json", "hf_quant_config.json"])]
    said = capsys.readouterr().out
    assert "someone/tiny: 4.33 million parameters" in said
    assert "there is no GPU here: estimated for H100 (--gpu NAME for another)\n" in said
