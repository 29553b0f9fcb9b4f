"""Compilation of the GPU kernels that a model will need, side by side, while its weights are read.

Triton compiles a kernel when it is first called, which takes half a second to three; one after the other, those of a
first start take longer than the weights. Here each is called once on a few zeros of the model's shapes. A kernel that
is not called here, or not with the shapes that come, is compiled when it is needed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import transformers

from openai_bls.core.checkpoint import expert_count
from openai_bls.core.manifest import Manifest, first_line
from openai_bls_transformers.attention_spec import Scoring, head_sizes, layer_windows, score_cap
from openai_bls_transformers.record import EmbeddedRecord

logger = logging.getLogger(__name__)

_THREADS = 12
_DECODING = (1, 4, 8, 16, 64, 128, 256)
"""Sequences of decoding steps whose attention has different kernels, with 4 key heads on 132 multiprocessors."""
_MANY_OUTPUTS = 8192
"""Outputs of a linear layer from which on the kernel for a few rows has another shape."""


@contextlib.contextmanager
def compiling(folder: Path, manifest: Manifest, device: torch.device) -> Iterator[None]:
    """Compile beside what is done in this context, which ends when all is compiled."""
    started = time.monotonic()
    with ThreadPoolExecutor(_THREADS, "kernel-compiler") as pool:
        try:
            calls = list(_calls(folder, manifest, device))
        except Exception as error:  # the model itself will be refused with a reason
            logger.info("no kernel is compiled ahead: %s", first_line(error))
            calls = []
        done = [pool.submit(_quietly, call) for call in calls]
        yield
    if done:
        logger.info("%d kernels ahead after %.1f s", sum(one.result() for one in done), time.monotonic() - started)


def _quietly(call: Callable[[], Any]) -> bool:
    """Whether `call` worked; one that did not will fail where it is needed."""
    try:
        call()
    except Exception as error:
        logger.debug("not compiled ahead: %s", error)
        return False
    return True


def _calls(folder: Path, manifest: Manifest, device: torch.device) -> Iterator[Callable[[], Any]]:
    """Calls of all kernels, those that take longest to compile first."""
    from openai_bls_transformers.gpu import paged_attention

    config = transformers.AutoConfig.from_pretrained(
        folder, trust_remote_code=manifest.trust_remote_code, local_files_only=True
    ).get_text_config()
    dtype = config.dtype if manifest.dtype == "auto" else getattr(torch, manifest.dtype)
    device = torch.empty(0, device=device).device  # with its number
    is_current = device.type != "cuda" or device.index == torch.cuda.current_device()  # which new threads have
    if dtype in paged_attention.HALF and not EmbeddedRecord.of(manifest).quant and is_current:
        yield from _attention_calls(config, manifest.max_model_len, manifest.max_batch_size, dtype, device)
        yield from _expert_calls(config, dtype, device)
        yield from _layer_calls(config, manifest.max_batch_size, dtype, device)


def _attention_calls(
    config: Any, max_model_len: int, max_batch_size: int, dtype: torch.dtype, device: torch.device
) -> Iterator[Callable[[], Any]]:
    from openai_bls_transformers.gpu import attention_kernels, attention_trials, fused_kernels, paged_attention

    heads, kv_heads, size = head_sizes(config)
    page, scale = paged_attention.PAGE_SIZE, size**-0.5
    with contextlib.suppress(Exception):
        # Not by one of several threads: Python ends imports that wait for each other with an error.
        importlib.import_module("openai_bls_transformers.gpu.hopper_attention")
    zeros = functools.partial(torch.zeros, dtype=dtype, device=device)
    yield functools.partial(paged_attention.prompt_kernel, device, dtype, heads, kv_heads, size)
    scorings = [Scoring(window, score_cap(config)) for window in sorted(set(layer_windows(config)))]
    for scoring in scorings:
        yield functools.partial(attention_trials.try_paged, device, dtype, heads, kv_heads, size, dtype, scoring)
    q, k, cache = zeros(1, heads, size), zeros(1, kv_heads, size), zeros(page, kv_heads, size)
    cos_sin = zeros(1, size), zeros(1, size)
    slots, ends = torch.zeros(1, dtype=torch.int64, device=device), attention_trials.ends([1], device)
    mixed = functools.partial(attention_kernels.mixed_attention, q, cache, cache, slots, ends, ends, scale)
    for scoring in scorings:
        for split in (False, True) if not scoring.window else (False,):
            yield functools.partial(mixed, split_keys=split, scoring=scoring)
    most = attention_kernels.processors(device)
    for count in (count for count in _DECODING if count <= max_batch_size):
        pages = torch.zeros(count, -(-max_model_len // page), dtype=torch.int32, device=device)
        asked, new = q.expand(count, -1, -1), k.expand(count, -1, -1)
        places = pages, attention_trials.ends([1] * count, device), page, scale, most
        angles = cos_sin[0].expand(count, -1), cos_sin[1].expand(count, -1)
        decode = functools.partial(attention_kernels.decode_attention, asked, new, new, cache, cache, *places, angles)
        for scoring in scorings:
            yield functools.partial(decode, scoring)
    yield functools.partial(fused_kernels.rotary_to_cache, q, k, k, cos_sin, cache, cache, slots)


def _expert_calls(config: Any, dtype: torch.dtype, device: torch.device) -> Iterator[Callable[[], Any]]:
    """Calls for a mixture of experts whose router is one that `model.fused_experts` knows."""
    count = expert_count(config.to_dict())
    top = getattr(config, "num_experts_per_tok", None)
    if not count or not isinstance(top, int):
        return
    from openai_bls_transformers.gpu import expert_kernels

    zeros = functools.partial(torch.zeros, dtype=dtype, device=device)
    size, inner = config.hidden_size, getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    weights = [zeros(1, *shape).expand(count, -1, -1) for shape in ((2 * inner, size), (size, inner))]
    experts = expert_kernels.Experts(*weights)
    if config.model_type == "gpt_oss":
        clamp = expert_kernels.Clamp(config.swiglu_alpha, config.swiglu_limit)
        biases = {"gate_up_bias": zeros(count, 2 * inner), "down_bias": zeros(count, size)}
        experts = experts._replace(**biases, interleaved=True, clamp=clamp)
    for tokens in expert_kernels.sizes(top, count):
        chosen = torch.zeros(tokens, top, dtype=torch.int64, device=device)
        yield functools.partial(expert_kernels.mix, zeros(tokens, size), experts, chosen, zeros(tokens, top))
    normalized = bool(getattr(config, "norm_topk_prob", True))
    yield functools.partial(expert_kernels.choose, zeros(1, count), top, normalized=normalized, dtype=dtype)


def _layer_calls(
    config: Any, max_batch_size: int, dtype: torch.dtype, device: torch.device
) -> Iterator[Callable[[], Any]]:
    from openai_bls_transformers.gpu import few_rows_kernels, fused_kernels, token_kernels

    heads, kv_heads, size = head_sizes(config)
    zeros = functools.partial(torch.zeros, dtype=dtype, device=device)
    integers = functools.partial(torch.zeros, dtype=torch.int32, device=device)
    for rows in (1, 2):
        x = zeros(1, rows, config.hidden_size)
        for bias in (None, zeros(16)):
            yield functools.partial(few_rows_kernels.linear, x, zeros(16, config.hidden_size), bias)
        many = zeros(min(config.vocab_size, _MANY_OUTPUTS), config.hidden_size)
        yield functools.partial(few_rows_kernels.linear, x, many, None)
        gate = zeros(2 * min(config.intermediate_size, _MANY_OUTPUTS), config.hidden_size)
        yield functools.partial(few_rows_kernels.gated_linear, x, gate, None)
    yield functools.partial(fused_kernels.rms_norm, x, x[0, 0], 1e-6)
    yield functools.partial(fused_kernels.add_rms_norm, x, x, x[0, 0], 1e-6)
    yield functools.partial(fused_kernels.silu_mul, zeros(1, 2, 2 * config.intermediate_size))
    turned, angles = zeros(1, 2, heads + 2 * kv_heads, size).transpose(1, 2), zeros(1, 2, size)
    yield functools.partial(
        fused_kernels.rotary, turned[:, :heads], turned[:, heads : heads + kv_heads], angles, angles
    )
    frequencies = torch.zeros(size // 2, device=device)
    yield functools.partial(fused_kernels.angles, integers(1, 2), frequencies, 1.0, dtype)
    yield functools.partial(token_kernels.carry_over, integers(1, 2), integers(2), integers(2))
    for rows in (1, 16, 32, 64, 128, 256):
        if rows <= max_batch_size:
            columns = 2048 + config.vocab_size % 16
            yield functools.partial(token_kernels.argmax, zeros(rows, columns), integers(rows), integers(rows))
