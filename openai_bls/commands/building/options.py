"""Command `build`: its options, which import nothing of the builder that is heavy."""

from __future__ import annotations

import argparse
from pathlib import Path

from openai_bls.builder.engine_build import engine_builds
from openai_bls.commands.options import REPOSITORY_HELP
from openai_bls.core import guide_names
from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines import registry
from openai_bls.launcher.errors import LaunchError

GUIDE_NAMES = guide_names.BUILD

_DESCRIPTION = """\
Put a Hugging Face checkpoint into the model repository.

    openai-bls build --model Qwen/Qwen2.5-7B-Instruct                  a hub id or a directory
    openai-bls build --model Qwen/Qwen2.5-72B-Instruct --dry-run       the plan and what it takes; writes nothing
    openai-bls build --model Qwen/Qwen2.5-72B-Instruct --tp-size 4 --quant fp8 --max-seq-len 16384
    openai-bls build --model Qwen/Qwen2.5-0.5B-Instruct --name small   a further engine, beside the default one
    openai-bls build --remove small

Where TensorRT-LLM and a GPU are, it places the checkpoint for the PyTorch flow, or converts it and builds a TensorRT
engine (--flow tensorrt, the default before TensorRT-LLM 1.2); elsewhere the embedded engine of transformers takes the
checkpoint as it is. A GGUF file goes to llama.cpp. With --engine vllm the checkpoint goes to vLLM, in an environment
and a separate process.

The engine goes into `tensorrt_llm/1/`, its tokenizer into the models that need it, and serving settings into
`tensorrt_llm/config.pbtxt` as literal values. All of it is prepared aside and moved into place at the end, so that a
build that fails or is killed leaves the last good engine. A second run with the same options does nothing; one that
changes serving options or the name only writes these, without another build. Restart the server to serve the engine.

With --name it builds a further engine, which `openai_bls` serves under its own model name: `tensorrt_llm_<name>/`,
`preprocessing_<name>/` and `openai_bls/1/tokenizer_<name>/`. These are the build's own: edits in them last until it
builds that engine again. The ensembles and `postprocessing` stay with the default engine.

Engines on one machine share its cores and memory: each takes its share as if it were alone.
--max-tokens-in-kv-cache limits the KV cache of one.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options. Only what was given is in the result, so that options without a meaning can be told."""
    parser.usage = f"{parser.prog} [--model DIR|ID] [options]"
    parser.description = _DESCRIPTION
    parser.formatter_class = lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=120)
    parser.argument_default = argparse.SUPPRESS
    what = parser.add_argument_group("what to build")
    what.add_argument(
        "--model",
        help="Hugging Face directory, GGUF file, hub id or smollm2, a small model (default: the demo checkpoint)",
    )
    what.add_argument(
        "--revision", metavar="REV", help="commit, tag or branch of a hub id (default: its default branch)"
    )
    what.add_argument("--model-repository", type=Path, metavar="DIR", help=REPOSITORY_HELP)
    which = what.add_mutually_exclusive_group()
    which.add_argument("--name", help="build a further engine of this name (lower-case letters, digits, underscores)")
    which.add_argument("--remove", metavar="NAME", help="remove the further engine of this name, and build nothing")
    what.add_argument(
        "--engine",
        choices=("auto", *registry.names()),
        help="auto is llama_cpp for a GGUF file, tensorrt_llm or vllm where this Python has it and a GPU is there, "
        "else transformers",
    )
    what.add_argument("--served-model-name", metavar="NAME", help="name in the API (default: the directory's)")
    what.add_argument("--trust-remote-code", action="store_true", help="run Python code that the checkpoint holds")
    what.add_argument(
        "--force", action="store_true", help="build even if nothing changed, or if the estimate says it will not fit"
    )
    what.add_argument(
        "--no-self-test",
        dest="self_test",
        action="store_false",
        help="build without it, on a machine that cannot hold the model",
    )
    what.add_argument(
        "--dry-run", action="store_true", help="print plan and estimate for TensorRT-LLM; needs no GPU and no weights"
    )
    what.add_argument("--gpu", metavar="NAME", help="to estimate for, such as L40S (default: what is here, else H100)")
    what.add_argument("--gpu-memory", metavar="SIZE", help="to estimate for a GPU of this memory, such as 16GB")
    _add_sizes(parser.add_argument_group("sizes"))
    _add_quantization(parser.add_argument_group("number formats and quantization"))
    _add_lora(parser.add_argument_group("adapters (LoRA)"))
    try:
        builds = engine_builds()
    except EngineLoadError as error:  # a plug-in that is installed and cannot be imported
        raise LaunchError(str(error)) from None
    for build in builds.values():
        if build.add_arguments is not None:
            build.add_arguments()(parser)


def _add_sizes(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        help="of the weights; auto is the checkpoint's own (transformers on a CPU: float32)",
    )
    group.add_argument(
        "--max-seq-len",
        "--max-model-len",
        type=int,
        metavar="N",
        help="most tokens of prompt and output together (default: what the model was made for)",
    )
    group.add_argument(
        "--max-batch-size",
        type=int,
        metavar="N",
        help="sequences in flight (default: 64; llama_cpp: 8 where the KV cache has room for a part for each)",
    )
    group.add_argument(
        "--max-images",
        type=int,
        metavar="N",
        help="images that a prompt may hold, of a vision-language model; 0 is text alone (default: 8)",
    )
    group.add_argument(
        "--max-tokens-in-kv-cache",
        type=int,
        metavar="N",
        help="tokens of all sequences together; with every engine (default: by the memory there is)",
    )
    # Settings in config.pbtxt, of more than one engine: an engine adds options that it alone has.
    group.add_argument(
        "--enable-kv-cache-reuse",
        action=argparse.BooleanOptionalAction,
        help="prompts that begin alike share their KV cache, with tensorrt_llm and vLLM",
    )
    group.add_argument(
        "--enable-chunked-context",
        action=argparse.BooleanOptionalAction,
        help="take long prompts in over several steps, with tensorrt_llm (default: if prompts may be longer than"
        " --max-num-tokens) and vLLM",
    )
    group.add_argument("--tp-size", type=int, metavar="N", help="GPUs that share each layer (default: 1)")
    group.add_argument(
        "--pp-size",
        type=int,
        metavar="N",
        help="stages of layers, a GPU each, or --tp-size of them (default: 1)",
    )


def _add_quantization(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--quant",
        metavar="HOW",
        help="of the weights, by the names on the engine's page: fp8 with transformers, one of `quantization` with"
        " vLLM. A checkpoint that is quantized already is taken as it is, without this",
    )


def _add_lora(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--lora-dir",
        action="append",
        metavar="[NAME=]DIR",
        help="an adapter (PEFT), served as a model of its own name; may be repeated",
    )
    group.add_argument(
        "--max-loras",
        type=int,
        metavar="N",
        help="adapters loaded at a time, those that come while the server runs included (default: those of --lora-dir)",
    )
    group.add_argument("--max-lora-rank", type=int, metavar="N", help="(default: the adapters' highest, else 16)")


def run(given: argparse.Namespace) -> int:
    """Build, plan or remove; returns the exit status."""
    from openai_bls.commands.building.command import run as run_build

    return run_build(given)
