"""Options of `openai-bls build` that only TensorRT-LLM has."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from openai_bls_tensorrt_llm.installed.interface import KvCacheDtype
from openai_bls_tensorrt_llm.recipe.quantizations import BUILT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    _add_sizes(parser.add_argument_group("sizes and number formats (TensorRT-LLM)"))
    _add_build(parser.add_argument_group("the build (TensorRT-LLM)"))
    _add_serving(parser.add_argument_group("serving, written into config.pbtxt (TensorRT-LLM; no rebuild)"))


def _add_sizes(group: argparse._ArgumentGroup) -> None:
    group.description = f"--quant is one of {', '.join(BUILT)}; smoothquant, int8 and int4_awq are understood too."
    more = (
        ("--max-input-len", "most tokens of a prompt (default: all but the output's; see --enable-chunked-context)"),
        ("--max-output-len", "most tokens of an output, in the place of --max-seq-len"),
        ("--max-num-tokens", "tokens of one step, prompts and new tokens together (default: 8192)"),
        ("--max-beam-width", "of beam search (default: 1)"),
    )
    for option, text in more:
        group.add_argument(option, type=int, metavar="N", help=text)
    group.add_argument("--kv-cache-dtype", choices=get_args(KvCacheDtype), help="auto is that of the weights")
    group.add_argument(
        "--calib-dataset",
        metavar="NAME|DIR",
        help="text to calibrate with; no network for a directory (default: cnn_dailymail, from the hub)",
    )
    group.add_argument("--calib-size", type=int, metavar="N", help="texts to calibrate with (default: 512; awq: 32)")


def _add_build(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--flow",
        choices=("auto", "tensorrt", "pytorch"),
        help="build a TensorRT engine, or let TensorRT-LLM's PyTorch flow load the checkpoint (default: tensorrt before"
        " TensorRT-LLM 1.2; from then on pytorch, unless another option or the model needs tensorrt)",
    )
    group.add_argument(
        "--backend",
        choices=("python", "cpp"),
        help="Triton's: our model.py over the LLM API, or the C++ backend tensorrtllm (default: python)",
    )
    group.add_argument(
        "--extra-llm-api-options",
        type=Path,
        metavar="FILE",
        help="YAML with further arguments of LLM, as trtllm-serve has it: speculative_config, cuda_graph_config,"
        " moe_config ... (--flow pytorch; engines/tensorrt_llm/docs/models.md)",
    )
    group.add_argument(
        "--workers", type=int, metavar="N", help="ranks that are built side by side: all of them, or leave it out"
    )
    group.add_argument("--gemm-plugin", metavar="TYPE", help="auto, disable, or a type such as float16 or fp8")
    group.add_argument("--gpt-attention-plugin", metavar="TYPE", help="as --gemm-plugin")
    switches = (
        (("--use-paged-context-fmha", "--paged-context-fmha"), "prompts read the paged KV cache"),
        (("--use-fp8-context-fmha",), "prompts' attention in FP8"),
        (
            ("--use-custom-all-reduce",),
            "of older guides: TensorRT-LLM chooses the all-reduce itself since, and this is refused",
        ),
        (("--multiple-profiles",), "kernels chosen for several sizes: a longer build, a faster engine"),
        (("--gather-logits",), "keep logits, which log-probabilities need"),
    )
    for names, text in switches:
        group.add_argument(*names, nargs="?", const=True, type=_switch, metavar="enable|disable", help=text)
    group.add_argument(
        "--plugin", action="append", metavar="NAME=VALUE", help="another field of PluginConfig; may be repeated"
    )
    group.add_argument("--workspace", type=Path, metavar="DIR", help="scratch space (default: in the repository)")
    group.add_argument("--keep-workspace", action="store_true", help="keep its files")


def _add_serving(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--kv-cache-free-gpu-mem-fraction",
        type=float,
        metavar="X",
        help="share that the KV cache takes of the GPU memory that the weights leave (default: 0.9)",
    )
    group.add_argument("--kv-cache-host-memory-bytes", type=int, metavar="N", help="that cached prompts may move to")
    group.add_argument(
        "--max-attention-window-size",
        metavar="N[,N...]",
        help="tokens that attention looks back; several go round over the layers",
    )
    group.add_argument("--batch-scheduler-policy", choices=("guaranteed_no_evict", "max_utilization"))
    group.add_argument(
        "--guided-decoding-backend",
        choices=("xgrammar", "llguidance"),
        help="holds outputs to a grammar; without it, requests for structured output are refused",
    )
    group.add_argument("--max-queue-delay", type=int, metavar="MICROSECONDS", help="of Triton's queue (--backend cpp)")
    group.add_argument("--max-queue-size", type=int, metavar="N", help="of Triton's queue (--backend cpp)")
    group.add_argument(
        "--cpp-parameter",
        action="append",
        metavar="NAME=VALUE",
        help="another parameter of the C++ backend, by its name; may be repeated",
    )


def _switch(text: str) -> bool:
    words = {"enable": True, "true": True, "disable": False, "false": False}
    if text.lower() not in words:
        raise argparse.ArgumentTypeError(f"{text!r} is neither enable nor disable")
    return words[text.lower()]
