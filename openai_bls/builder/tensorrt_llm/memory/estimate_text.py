"""Text of `build/engine.py --dry-run`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from openai_bls.builder.tensorrt_llm.memory.gpus import GIB
from openai_bls.builder.tensorrt_llm.memory.sizes import Estimate, PlannedEngine
from openai_bls.builder.tensorrt_llm.model.shapes import ModelShape

_WIDTH = 100
_LABEL = 26
_NUMBER = 10
_NO_BREAK = "\N{NO-BREAK SPACE}"


def report(shape: ModelShape, options: PlannedEngine, found: Estimate, *, model: str = "") -> str:
    """The plan and its estimate as aligned lines, headed by `model`, such as a hub id."""
    ranks = "on 1 GPU" if options.ranks == 1 else f"on {options.ranks} GPUs (tp {options.tp} × pp {options.pp})"
    gpu = f": {options.gpu.name}, {_size(options.gpu.memory_bytes)}" if options.gpu else ""
    gpu += " each" if options.gpu and options.ranks > 1 else ""
    lines = [
        f"{model or shape.architecture}: {_count(found.parameters)} parameters, {shape.architecture}",
        *_pairs("model", _model(shape)),
        *_pairs("engine", f"{options.flow} flow, {_formats(options, found)}, {ranks}{gpu}"),
        *_pairs("limits", _limits(options)),
        "",
        "Memory of each GPU",
        _row("weights", found.weights_per_rank, f"{_size(found.weights)} in all" if options.ranks > 1 else ""),
        _row("activations", found.activations, "allowance"),
        _row("decoder, logits", found.decoder, "allowance"),
        *([_row("states", found.states, f"of {options.max_batch_size} sequences")] if found.states else []),
        _row("runtime", found.runtime, "allowance: CUDA context, kernels" + ", NCCL" * (options.ranks > 1)),
    ]
    fraction = f"{options.kv_cache_free_gpu_mem_fraction:.0%} of what is left"
    if options.limited(found.kv_tokens):
        fraction = f"--max-tokens-in-kv-cache {options.max_tokens_in_kv_cache}"
    if found.kv_pool is None:
        lines += [_row("without a KV cache", found.gpu_memory)]
    else:
        lines += [_row("KV cache", found.kv_pool, fraction)]
    lines += ["", "KV cache", _token_row(options, found)]
    if found.kv_tokens is not None:
        lines += [
            f"  {'tokens that fit':<{_LABEL}}{found.kv_tokens:>{_NUMBER},}",
            f"  {'largest batch':<{_LABEL}}{found.batch_full:>{_NUMBER},}  of {options.max_seq_len:,} tokens each",
            f"  {'':<{_LABEL}}{found.batch_half:>{_NUMBER},}  of {-(-options.max_seq_len // 2):,} tokens each",
        ]
    elif found.fits is not None and not found.problems:
        lines += _pairs("fits on", ", ".join(found.fits) or "none of the GPUs known here", kept=found.fits)
    lines += ["", "Build" if found.engine_on_disk else "Disk and start"]
    lines += [_row("checkpoint on disk", found.checkpoint)]
    if found.engine_on_disk:
        lines += [_row("engine on disk", found.engine_on_disk)]
    lines += [
        _row("disk needed in all", found.disk),
        _row("host memory, peak", found.host_memory, "allowance"),
        _row("GPU memory, peak", found.build_gpu_memory, "of each GPU, without a KV cache"),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n" + sentences(found.problems, found.notes)


def sentences(problems: Sequence[str], notes: Sequence[str]) -> str:
    """Both under their headings, with an empty line before each heading; empty if there are none."""
    lines = []
    for title, told in (("Problems", problems), ("Notes", notes)):
        if told:
            lines += ["", title]
        for sentence in told:
            lines += _wrapped(sentence, "  - ")
    return "".join(f"{line}\n" for line in lines)


def _model(shape: ModelShape) -> str:
    counts = shape.parameters
    mlp = f"MLP {shape.intermediate_size:,}"
    if counts.experts:
        mlp = f"{counts.experts} experts of {counts.expert_width:,}, {shape.experts_per_token} per token"
        mlp += f", a shared one of {counts.shared_expert_width:,}" if counts.shared_expert_width else ""
    cached = f"a latent of {shape.latent_size} cached" if shape.latent_size else f"{shape.kv_heads} of keys and values"
    heads = f"{shape.heads} heads of {shape.head_dim}, {cached}"
    longest = f", {shape.max_position_embeddings:,} positions" if shape.max_position_embeddings else ""
    tied = "" if counts.lm_head else " (tied)"
    return (
        f"{shape.layers} layers of {shape.hidden_size:,}, {mlp}, {heads}, "
        f"vocabulary {shape.vocab_size:,}{tied}{longest}"
    )


def _formats(options: PlannedEngine, found: Estimate) -> str:
    quant = f" with {found.quant} weights" if found.quant else ""
    cache = f", {options.kv_cache_dtype} KV cache" if options.kv_cache_dtype != "auto" else ""
    return f"{found.dtype}{quant}{cache}"


def _limits(options: PlannedEngine) -> str:
    beams = f", beam width {options.max_beam_width}" if options.max_beam_width > 1 else ""
    return (
        f"{options.max_batch_size:,} sequences of {options.max_seq_len:,} tokens, "
        f"prompts of {options.max_input_len:,}, "
        f"{options.max_num_tokens:,} tokens per step{beams}"
    )


def _token_row(options: PlannedEngine, found: Estimate) -> str:
    each = f"  {found.kv_per_token_per_rank / 1024:,.4g} KiB on each GPU" if options.ranks > 1 else ""
    size = f"{found.kv_per_token / 1024:,.4g} KiB"
    return f"  {'per token':<{_LABEL}}{size:>{_NUMBER}}{each}"


def _row(label: str, size: int, remark: str = "") -> str:
    return f"  {label:<{_LABEL}}{_size(size):>{_NUMBER}}  {remark}"


def _pairs(label: str, text: str, kept: tuple[str, ...] = ()) -> list[str]:
    """`kept` are names that stay on one line."""
    for name in kept:
        text = text.replace(name, name.replace(" ", _NO_BREAK))
    return [line.replace(_NO_BREAK, " ") for line in _wrapped(text, f"  {label:<8}")]


def _wrapped(text: str, first: str) -> list[str]:
    """Never inside a word such as `--tp-size`."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _size(size: int) -> str:
    """Bytes as GiB, or as MiB below a hundredth of one."""
    return f"{size / (1 << 20):.2f} MiB" if 0 < size < GIB // 100 else f"{size / GIB:.2f} GiB"


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 10**8 else f"{number / 1e6:.2f} million"
