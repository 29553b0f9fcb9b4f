"""Options of `build --engine vllm`: what they become, and the sentences about those of other engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openai_bls.builder.engine_build import refuse_foreign
from openai_bls.builder.options.build import BuildOptions
from openai_bls.commands.building import command as build_command
from openai_bls.commands.main import parse
from openai_bls.core.manifest import BuildError
from openai_bls_tensorrt_llm.recipe.options import TENSORRT_LLM_ONLY
from openai_bls_vllm.recipe import options as vllm_options
from openai_bls_vllm.recipe.options import VllmOptions


def asked(*arguments: str) -> Any:
    return build_command.wanted(parse("build", arguments))


def refusal(*arguments: str) -> str:
    with pytest.raises(BuildError) as caught:
        asked(*arguments)
    return str(caught.value)


def test_every_option(tmp_path: Path) -> None:
    file = tmp_path / "extra.yaml"
    file.write_text("gpu-memory-utilization: 0.5\nspeculative_config: {method: ngram}\n")
    words = "--engine vllm --tp-size 2 --pp-size 3 --quant AWQ --max-model-len 9 --max-batch-size 4 --dtype float16"
    words += f" --extra-engine-args {file} --engine-python python9 --max-loras 5 --trust-remote-code --no-self-test"
    options: BuildOptions = asked(*words.split(), "--no-enable-kv-cache-reuse").options
    assert (options.max_model_len, options.max_batch_size, options.dtype) == (9, 4, "float16")
    assert (options.lora.max_loras, options.trust_remote_code, options.self_test) == (5, True, False)
    own = options.own_as(VllmOptions)
    assert (own.tensor_parallel_size, own.pipeline_parallel_size, own.quant) == (2, 3, "AWQ")
    assert own.extra_engine_args == {"gpu-memory-utilization": 0.5, "speculative_config": {"method": "ngram"}}
    assert own.engine_python == "python9"
    assert own.task == "generate"
    assert asked("--engine", "vllm", "--task", "score").options.own_as(VllmOptions).task == "score"
    assert own.settings.enable_kv_cache_reuse is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--engine transformers --task embed", "--task is for --engine vllm: the engine transformers does not know it"),
        ("--max-tokens-in-kv-cache 9", "put kv_cache_memory_bytes or num_gpu_blocks_override into the file"),
        ("--max-num-tokens 9", "put max_num_batched_tokens into the file of --extra-engine-args"),
        ("--max-input-len 9", "give --max-model-len, which bounds prompt and output together"),
        ("--backend cpp", "vLLM runs in a process of its own"),
        ("--gemm-plugin auto", "--gemm-plugin is for --engine tensorrt_llm: vLLM takes the checkpoint as it is"),
        ("--dry-run", "--dry-run plans engines of tensorrt_llm: the engine vllm has nothing to plan"),
        ("--extra-engine-args nowhere.yaml", "--extra-engine-args nowhere.yaml cannot be read"),
        ("--tp-size 0", "--tp-size must be at least 1"),
        ("--engine-python=", "--engine-python is empty"),
        ("--quant=", "--quant is empty"),
    ],
)
def test_refusals(words: str, said: str) -> None:
    assert said in refusal("--engine", "vllm", *words.split())


def test_every_option_of_tensorrt_llm_has_a_sentence() -> None:
    """One that this engine honours is taken out before."""
    honoured = {"quant", "pp_size", *vllm_options.HONOURED_SETTINGS}
    for name in TENSORRT_LLM_ONLY - honoured:
        with pytest.raises(BuildError, match=f"--{name.replace('_', '-')} is"):
            refuse_foreign("vllm", [name])


@pytest.mark.parametrize("engine", ["transformers", "tensorrt_llm", "null"])
@pytest.mark.parametrize("option", ["--engine-python", "--extra-engine-args"])
def test_its_options_with_other_engines(engine: str, option: str) -> None:
    said = f"{option} is for --engine vllm: the engine {engine} does not know it"
    assert refusal("--engine", engine, option, "x") == said
