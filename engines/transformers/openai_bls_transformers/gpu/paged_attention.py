"""Attention on a GPU under continuous batching.

`paged` reads keys and values where they lie in the paged cache (`attention_kernels`). transformers' own ways copy those
of all running sequences together first, in every layer of every step, which triples the traffic.

Layers with windows keep all of their keys and values in it, as the others do, and the kernels read those of the window.

`varlen` is that copy and the flash attention inside PyTorch: for machines on which our kernels do not compile.

transformers takes an implementation whose name has "flash" in it for one that wants no mask and understands the lengths
that continuous batching passes along; both are registered under such names.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.generation.continuous_batching import initialization

from openai_bls.core.manifest import first_line
from openai_bls_transformers import fp8_numbers
from openai_bls_transformers.attention_spec import (
    PLAIN,
    SCORING,
    Scoring,
    head_sizes,
    layer_windows,
    refuse_features,
    score_cap,
)
from openai_bls_transformers.gpu import attention_trials, varlen_attention
from openai_bls_transformers.gpu.varlen_attention import REFUSAL, of_full_layers

logger = logging.getLogger(__name__)

_NAMES = {"paged": "openai_bls_flash_paged", "varlen": "openai_bls_flash_varlen"}
HALF = (torch.bfloat16, torch.float16)
PAGE_SIZE = 32
"""Tokens of a page of the cache: small ones let short prefixes be shared."""
_KEEPS_ALL = find_spec("transformers.generation.continuous_batching.cache_allocators") is not None
"""The installed continuous batching has a cache that can be told to keep what is behind a window."""
_MOST_DIMS = 256  # size of a head
_LONG_PROMPT = 1024
"""Queries of a sequence from which on a kernel of its own pays.

A step with several shorter prompts would wait for the host: it takes some 0.15 ms for each of them in every layer.
"""
_LONG_CONTEXT = 4096
"""Keys of a sequence from which on the mixed kernel shares them out."""


def use(model: Any, kind: str) -> None:
    """Let `model` attend by `kind`, "paged" or "varlen", which `refusal` has not refused."""
    name = _NAMES[kind]
    functions = {"paged": _paged, "varlen": varlen_attention.varlen}
    for prefix in ("", "paged|"):
        AttentionInterface.register(prefix + name, functions[kind])
    # The setter looks for packages that it associates with the word "flash"; the configuration does not.
    prefixed = "paged|sdpa" in AttentionInterface._global_mapping  # 5.17 knows these by a prefix
    model.config._attn_implementation = f"paged|{name}" if prefixed else name
    original = initialization.ensure_decode_fast_path_is_available
    if not hasattr(original, "openai_bls"):
        initialization.ensure_decode_fast_path_is_available = _keep_block_tables(original)


def in_use(model: Any, kind: str) -> bool:
    """True if `use(model, kind)` was the latest call."""
    return str(model.config._attn_implementation).endswith(_NAMES[kind])


def _keep_block_tables(original: Callable[..., None]) -> Callable[..., None]:
    """Block tables for decode steps, which transformers builds for its own flash attention only."""

    def ensure(config: Any, cb_config: Any, user_requested: bool) -> None:
        if not str(config._attn_implementation).endswith(_NAMES["paged"]):
            original(config, cb_config, user_requested)

    ensure.openai_bls = True  # type: ignore[attr-defined]
    return ensure


def seconds_per_score(model: Any) -> float:
    """Seconds per query and key of a prompt beside other sequences, in all layers, measured on random numbers."""
    from openai_bls_transformers.gpu import attention_kernels

    heads, kv_heads, size = head_sizes(model.config.get_text_config())
    queries, length, rounds = 1024, 8192, 3
    q = torch.randn(queries, heads, size, device=model.device, dtype=model.dtype)
    k, v = (torch.randn(length, kv_heads, size, device=model.device, dtype=model.dtype) for _ in range(2))
    slots = torch.arange(length, device=model.device)
    query_ends, key_ends = attention_trials.ends([queries], q.device), attention_trials.ends([length], q.device)

    def attend() -> None:
        attention_kernels.mixed_attention(q, k, v, slots, query_ends, key_ends, size**-0.5)

    attend()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(rounds):
        attend()
    torch.cuda.synchronize()
    layers = layer_windows(model.config.get_text_config()).count(0)  # the others' scores are as many at any length
    return (time.perf_counter() - started) / rounds * layers / (queries * (length - queries / 2))


def refusal(model: Any, kind: str, kv_cache: str = "auto") -> str | None:
    """Reason why `model` cannot attend by `kind` here, tried on random numbers; None if it can.

    Args:
        model: model on its device.
        kind: "paged" or "varlen".
        kv_cache: "fp8", or "auto" for the model's own type.
    """
    config = model.config.get_text_config()
    try:
        scorings = _scorings(model, config, kind)
    except NotImplementedError as error:
        return str(error)
    if model.dtype not in HALF:
        return f"the weights are {str(model.dtype).removeprefix('torch.')}, not half precision"
    heads, kv_heads, size = head_sizes(model.config.get_text_config())
    if size > _MOST_DIMS or heads % kv_heads:
        return f"heads of size {size}, {heads} for {kv_heads}, are not what it is made for"
    try:
        if kv_cache == "fp8" and (reason := fp8_numbers.refusal(model.device, model.dtype)) is not None:
            raise NotImplementedError(f"a KV cache in FP8: {reason}")
        shape = (model.device, model.dtype, heads, kv_heads, size)
        if kind == "paged":
            for scoring in scorings:
                attention_trials.try_paged(*shape, fp8_numbers.FP8 if kv_cache == "fp8" else model.dtype, scoring)
        else:
            attention_trials.try_varlen(varlen_attention.flash, *shape)
    except Exception as error:  # of compilers, drivers and missing packages
        reason = (str(error).strip().splitlines() or [""])[0]
        return f"{type(error).__name__}: {reason}"
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class _Layer:
    """A layer's part of the cache."""

    keys: torch.Tensor
    """[slots, key heads, size]."""
    values: torch.Tensor
    group: int
    """Index of this layer's group in the lists of indices."""
    page_size: int
    window: int
    """Keys that a query sees, its own included; 0 is all."""


def _layer(cache: Any, module: Any) -> _Layer:
    layers: dict[int, _Layer] = cache.__dict__.setdefault("_openai_bls_layers", {})
    index = module.layer_idx
    found = layers.get(index)
    if found is None:
        window = layer_windows(module.config)[index]
        if window >= getattr(cache, "max_blocks_per_request", 0) * PAGE_SIZE > 0:  # which no sequence reaches
            window = 0
        if hasattr(cache, "layer_to_allocator"):
            allocator = cache.layer_to_allocator[index]
            keys, values = allocator.get_cache_for_block_table(index)
            found = _Layer(keys.flatten(0, 1), values.flatten(0, 1), allocator.index, keys.shape[1], window)
        else:  # 5.17
            group, place = cache.layer_index_to_group_indices[index]
            found = _Layer(cache.key_cache[place], cache.value_cache[place], group, cache.block_size, window)
        layers[index] = found
    return found


def _paged(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over query [1, heads, queries, size]; returns [1, queries, heads, size]."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    return attend(module, q, k, v, None, scaling, **kwargs)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor] | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of a step over the paged cache, which the step's keys and values are written to.

    Args:
        module: the layer's attention.
        query: [1, queries, heads, size].
        key: [1, queries, key heads, size].
        value: [1, queries, key heads, size].
        angles: cosine and sine [1, queries, size] by which `query` and `key` are to be rotated; None: they have been.
        scaling: factor of the scores; None is size ** -0.5.
        kwargs: further arguments of continuous batching; with `kept_rows`, int32 [rows], no other row need be computed.

    Returns:
        [1, queries, heads, size], as transformers' attention functions do.
    """
    from openai_bls_transformers.gpu import attention_kernels

    refuse_features(kwargs, REFUSAL, SCORING)
    layer = _layer(kwargs["cache"], module)
    scoring = _scoring(layer, module, query.shape[2], kwargs)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = query[0], key[0], value[0]
    cos_sin = None if angles is None else (angles[0][0], angles[1][0])
    key_ends = of_full_layers(kwargs["cu_seq_lens_k"])
    pages = kwargs.get("block_table")
    if pages is not None:
        places = pages[layer.group], key_ends, layer.page_size, scale, attention_kernels.processors(q.device)
        out = attention_kernels.decode_attention(q, k, v, layer.keys, layer.values, *places, cos_sin, scoring)
        return out.unsqueeze(0), None
    written = kwargs["write_index"][layer.group]
    if cos_sin is None:
        _write(layer.keys, written, k)
        _write(layer.values, written, v)
    else:
        from openai_bls_transformers.gpu import fused_kernels

        q = fused_kernels.rotary_to_cache(q, k, v, cos_sin, layer.keys, layer.values, written)
    slots = kwargs["read_index"][layer.group]
    query_ends = kwargs["cu_seq_lens_q"]
    if not slots.numel():  # no sequence has a past: all keys are the step's own
        slots, key_ends = written, query_ends
    prompts: list[LongPrompt] = kwargs.get("long_prompts") or []
    split = bool(kwargs.get("split_keys")) and not 0 < scoring.window < _LONG_CONTEXT
    has_own_kernel = bool(prompts) and scoring is PLAIN
    kernel = prompt_kernel(q.device, q.dtype, q.shape[1], k.shape[1], q.shape[2]) if has_own_kernel else None
    if kernel is None:
        out = attention_kernels.mixed_attention(
            q, layer.keys, layer.values, slots, query_ends, key_ends, scale, split_keys=split, scoring=scoring
        )
        return out.unsqueeze(0), None
    if sum(prompt.queries for prompt in prompts) < q.shape[0]:
        out = attention_kernels.mixed_attention(
            q, layer.keys, layer.values, slots, query_ends, key_ends, scale, _LONG_PROMPT - 1, split
        )
    else:
        out = q.new_empty(q.shape)
    kept = kwargs.get("kept_rows")
    for prompt in prompts if kept is None else [prompt.last(len(kept)) for prompt in prompts]:
        rows = slice(prompt.first_query, prompt.first_query + prompt.queries)
        own = slots[prompt.first_key : prompt.first_key + prompt.keys]
        keys, values = (_read(cache, own, q.dtype) for cache in (layer.keys, layer.values))
        kernel(q[rows], keys, values, out[rows], scale)
    return out.unsqueeze(0), None


def _scoring(layer: _Layer, module: Any, heads: int, asked: Mapping[str, Any]) -> Scoring:
    """Scoring of a layer, by the configuration and the arguments of a call, which must not contradict it."""
    window = asked.get("sliding_window")
    if layer.window and window not in (None, layer.window):
        raise NotImplementedError(f"layer {module.layer_idx} has a window of {layer.window} and asks for {window}")
    cap, sinks = asked.get("softcap") or 0.0, asked.get("s_aux")
    if sinks is not None and sinks.shape != (heads,):
        raise NotImplementedError(f"sinks of shape {tuple(sinks.shape)} for {heads} heads")
    return Scoring(layer.window, cap, sinks) if layer.window or cap or sinks is not None else PLAIN


def _scorings(model: Any, config: Any, kind: str) -> set[Scoring]:
    """Scorings of a model's layers, for trials.

    Raises:
        NotImplementedError: `kind` cannot have them, by the reason in the message.
    """
    windows = set(layer_windows(config))
    cap = score_cap(config)
    if windows != {0} and (kind == "varlen" or not _KEEPS_ALL):
        raise NotImplementedError("not every layer of the model has full attention")
    if cap and kind == "varlen":
        raise NotImplementedError("the model caps its attention scores")
    has_sinks = any(name.endswith(".sinks") for name, _ in model.named_parameters())
    heads = config.num_attention_heads
    sinks = torch.linspace(-2, 2, heads, device=model.device, dtype=model.dtype) if has_sinks else None
    return {Scoring(window, cap, sinks) for window in windows}


def with_full_attention(config: Any) -> Any:
    """A configuration by which continuous batching keeps all keys and values of every layer, as `use` wants it."""
    changed = copy.copy(config)
    changed.layer_types = ["full_attention"] * config.num_hidden_layers
    return changed


def _write(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Put `rows` into a cache; numbers beyond those of FP8 become its largest."""
    if cache.dtype == fp8_numbers.FP8:  # of which PyTorch copies no rows by index
        cache.view(torch.uint8).index_copy_(0, slots, fp8_numbers.saturated(rows).view(torch.uint8))
    else:
        cache.index_copy_(0, slots, rows)


def _read(cache: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rows of a cache, widened to `dtype`."""
    if cache.dtype == fp8_numbers.FP8:
        return cache.view(torch.uint8).index_select(0, slots).view(cache.dtype).to(dtype)
    return cache.index_select(0, slots)


def splits_keys(longest: int) -> bool:
    """True if the keys of a step with prompts should be shared out, by the longest sequence's."""
    return longest >= _LONG_CONTEXT


@dataclasses.dataclass(frozen=True, slots=True)
class LongPrompt:
    """Place of a long prompt among the queries and the keys of a step."""

    first_query: int
    queries: int
    first_key: int
    keys: int

    def last(self, count: int) -> LongPrompt:
        """Its last queries, at most `count`: the only ones that a step may want logits of."""
        queries = min(count, self.queries)
        return dataclasses.replace(self, first_query=self.first_query + self.queries - queries, queries=queries)


def long_prompts(query_ends: list[int], key_ends: list[int]) -> list[LongPrompt]:
    """Sequences of a step whose attention has a kernel of its own; the arguments are running totals, from 0."""
    bounds = zip(itertools.pairwise(query_ends), itertools.pairwise(key_ends), strict=True)
    return [LongPrompt(q0, q1 - q0, k0, k1 - k0) for (q0, q1), (k0, k1) in bounds if q1 - q0 >= _LONG_PROMPT]


@functools.cache
def prompt_kernel(
    device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, size: int
) -> Callable[..., None] | None:
    """The kernel for long prompts: the first that runs here and is right on random numbers; None if there is none."""
    for name in ("hopper_attention", "prompt_attention"):
        try:
            kernel: Any = importlib.import_module(f"openai_bls_transformers.gpu.{name}")
            if not kernel.is_supported(device, size):
                continue
            queries, length, scale = 300, 700, size**-0.5
            q = torch.randn(queries, heads, size, device=device, dtype=dtype)
            k, v = (torch.randn(length, kv_heads, size, device=device, dtype=dtype) for _ in range(2))
            out = torch.empty_like(q)
            kernel.prompt_attention(q, k, v, out, scale)
            attention_trials.require_close(out, attention_trials.reference(q, k, v, scale))
        except Exception as error:  # of compilers and drivers
            logger.warning("%s is not used for long prompts: %s: %s", name, type(error).__name__, first_line(error))
            continue
        return kernel.prompt_attention  # type: ignore[no-any-return]
    return None
