"""Memory of an engine on each GPU: weights, KV cache, and a margin for all else.

Weights and KV cache are exact sums, from the shape of the model alone. The margin stands for activations, logits, the
CUDA context, kernels and communication, which logs of TensorRT-LLM with its defaults put at 2 GiB; states of hybrids
are not counted. All of it is for one rank, the one that holds the most. GiB are 2^30 bytes throughout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from openai_bls.core.manifest import BuildError, Dtype
from openai_bls_tensorrt_llm.installed.interface import Flow, KvCacheDtype, Quant
from openai_bls_tensorrt_llm.recipe.gpus import GIB, Gpu
from openai_bls_tensorrt_llm.recipe.model.shapes import ModelShape
from openai_bls_tensorrt_llm.recipe.quantizations import CHECKPOINT_ONLY, KV_CACHE_BYTES, QUANTIZATIONS, Quantization

MARGIN_BYTES = 5 * GIB // 2
"""Bytes of each GPU for all but weights and KV cache."""
TOKENS_PER_BLOCK = 32
"""Tokens per block of the KV cache: `KvCacheConfig.tokens_per_block`."""
_DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


class PlannedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """An engine with everything decided, in the words of the command line."""

    flow: Flow = "tensorrt"
    dtype: Dtype = "auto"
    quant: Quant | None = None
    kv_cache_dtype: KvCacheDtype = "auto"
    tp: int = 1
    pp: int = 1
    max_batch_size: int = 64
    max_input_len: int = 1024
    max_seq_len: int = 2048
    max_num_tokens: int = 8192
    max_beam_width: int = 1
    kv_cache_free_gpu_mem_fraction: float = 0.9
    max_tokens_in_kv_cache: int | None = None
    """Tokens that the KV cache holds at most; None is as many as fit."""
    windows: tuple[int, ...] = ()
    """Tokens that each layer looks back, cyclically; empty if all look back at everything."""
    gpu: Gpu | None = None
    """GPU of each rank; None estimates without a KV cache."""

    @property
    def ranks(self) -> int:
        """GPUs needed."""
        return self.tp * self.pp


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes, unless the name says otherwise; "per rank" is the rank that holds the most."""

    parameters: int
    dtype: str
    """Type that `auto` stands for."""
    quant: str
    """Quantization of the weights that will run: asked for, or the checkpoint's own; empty is none."""
    weights: int
    """Bytes of all ranks together."""
    weights_per_rank: int
    kv_per_token: int
    """Bytes per token of the model, without the copies that ranks keep of the same head."""
    kv_per_token_per_rank: int
    kv_pool: int | None = None
    """Bytes per rank for the KV cache. None without a GPU, as are the next three."""
    kv_tokens: int | None = None
    """Tokens that fit in the KV cache, whole blocks."""
    kv_tokens_per_sequence: int | None = None
    """Tokens that a sequence of max_seq_len keeps in the KV cache: fewer than these with attention windows."""
    batch_full: int | None = None
    """Sequences of max_seq_len tokens that the KV cache holds at once."""

    @property
    def gpu_memory(self) -> int:
        """Bytes per rank, without any KV cache."""
        return self.weights_per_rank + MARGIN_BYTES


def quantization_named(name: str) -> Quantization | None:
    """Quantization of weights by a name of `Quant` or `CHECKPOINT_ONLY`; None if its size is not known."""
    return QUANTIZATIONS.get(name) or CHECKPOINT_ONLY.get(name)  # type: ignore[call-overload]


def estimate(shape: ModelShape, options: PlannedEngine) -> Estimate:
    """Memory of the engine.

    Raises:
        BuildError: an option has no meaning, such as a size below 1.
    """
    _require_sizes(options)
    # As TensorRT-LLM has it: the checkpoint's own, but float16 for one in float32.
    own_dtype = shape.dtype if shape.dtype in ("float16", "bfloat16") else "float16"
    dtype = own_dtype if options.dtype == "auto" else options.dtype
    element = _DTYPE_BYTES[dtype]
    quant = options.quant or (shape.quantization if quantization_named(shape.quantization) else "")
    per_rank, all_ranks = _weights(shape, options, element, quantization_named(quant))
    kv_element = KV_CACHE_BYTES.get(options.kv_cache_dtype, element)
    cached = math.ceil(shape.cache_layers / options.pp) * shape.cache_elements(_kv_heads_per_rank(shape, options))
    found = Estimate(
        parameters=shape.parameters.total,
        dtype=dtype,
        quant=quant,
        weights=all_ranks,
        weights_per_rank=per_rank,
        kv_per_token=shape.kv_bytes_per_token(kv_element),
        kv_per_token_per_rank=math.ceil(cached * kv_element),
    )
    return found if options.gpu is None else _with_cache(found, options, options.gpu)


def problems(options: PlannedEngine, found: Estimate) -> Iterator[str]:
    """Sentences on what does not fit on the GPU."""
    gpu = options.gpu
    if gpu is None or found.kv_tokens is None:
        return
    if found.gpu_memory > gpu.memory_bytes:
        yield (
            f"does not fit: each {gpu.name} has {gib(gpu.memory_bytes)} and {gib(found.gpu_memory)} are needed "
            "before any KV cache: raise --tp-size, or quantize (--quant)"
        )
    elif found.batch_full == 0:
        beams = f" with {options.max_beam_width} beams" if options.max_beam_width > 1 else ""
        kept = ""
        if options.windows and found.kv_tokens_per_sequence != options.max_seq_len:
            kept = f", of which the attention windows keep {found.kv_tokens_per_sequence:,}"
        ways = "lower --max-seq-len, raise --tp-size, or quantize the cache (--kv-cache-dtype) or the weights"
        if options.max_tokens_in_kv_cache is not None and found.kv_tokens >= options.max_tokens_in_kv_cache:
            ways = "raise --max-tokens-in-kv-cache or leave it out, or lower --max-seq-len"
        forced = (
            f"; --force builds it all the same, and then sequences run that keep at most {found.kv_tokens:,} tokens, "
            "since for a longer one TensorRT-LLM never has room"
        )
        yield (
            f"the KV cache would hold {found.kv_tokens:,} tokens, less than one sequence of {options.max_seq_len:,}"
            f"{beams}{kept}: {ways}{forced if found.kv_tokens else ''}"
        )


def lines(options: PlannedEngine, found: Estimate) -> Iterator[str]:
    """The estimate as aligned lines."""
    yield _row("weights", gib(found.weights_per_rank), f"{gib(found.weights)} in all" if options.ranks > 1 else "")
    yield _row("margin", gib(MARGIN_BYTES), "for activations, logits and the runtime")
    if found.kv_pool is not None:
        yield _row("KV cache", gib(found.kv_pool), f"{found.kv_per_token_per_rank / 1024:,.4g} KiB per token")
        yield _row("tokens that fit", f"{found.kv_tokens:,}")
        yield _row("largest batch", f"{found.batch_full:,}", f"of {options.max_seq_len:,} tokens each")


def gib(size: int) -> str:
    """Bytes as GiB."""
    return f"{size / GIB:.2f} GiB"


def _row(label: str, value: str, remark: str = "") -> str:
    return f"  {label:<16}{value:>14}  {remark}".rstrip()


def _require_sizes(options: PlannedEngine) -> None:
    for name in ("tp", "pp", "max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width"):
        if getattr(options, name) < 1:
            flag = {"tp": "tp-size", "pp": "pp-size"}.get(name, name.replace("_", "-"))
            raise BuildError(f"--{flag} must be at least 1")
    if not 0 < options.kv_cache_free_gpu_mem_fraction < 1:
        raise BuildError("--kv-cache-free-gpu-mem-fraction must be above 0 and below 1")


def _kv_heads_per_rank(shape: ModelShape, options: PlannedEngine) -> int:
    """Heads per rank: with more ranks than heads, several ranks keep the same one."""
    return math.ceil(shape.kv_heads / options.tp)


def _linear_weights(shape: ModelShape, element: int, how: Quantization | None) -> float:
    """Bytes of the matrices in all layers."""
    counts = shape.parameters
    if how is None:
        return counts.linear * element
    quantized = counts.expert_linear if how.experts_only else counts.linear
    return quantized * how.bytes_per_weight + (counts.linear - quantized) * element


def _weights(shape: ModelShape, options: PlannedEngine, element: int, how: Quantization | None) -> tuple[int, int]:
    """Bytes of the fullest rank, and of all ranks together.

    Matrices, embeddings and the output projection are cut into `tp` parts; norms, biases and routers are on each rank,
    and so is a head of keys and values of which there are fewer than ranks.
    """
    counts = shape.parameters
    copied = _kv_heads_per_rank(shape, options) - shape.kv_heads / options.tp
    copies = shape.layers * 2 * copied * shape.head_dim * shape.hidden_size
    linear = _linear_weights(shape, element, how) / options.tp + copies * (how.bytes_per_weight if how else element)
    layers = linear + (counts.router + counts.other) * element  # of all layers, on one of `tp` ranks
    table = math.ceil(counts.embedding / options.tp) * element
    head = math.ceil(counts.lm_head / options.tp) * element
    stage = layers * math.ceil(shape.layers / options.pp) / shape.layers
    if options.pp == 1:
        fullest, both_ends = math.ceil(stage) + table + head, table + head
    else:  # the first stage has the embeddings, the last the output projection, if only a copy of the same table
        fullest, both_ends = math.ceil(stage) + max(table, head), table + (head or table)
    return fullest, options.tp * (math.ceil(layers) + both_ends)


def _with_cache(found: Estimate, options: PlannedEngine, gpu: Gpu) -> Estimate:
    free = max(0, gpu.memory_bytes - found.gpu_memory)
    pool = math.floor(free * options.kv_cache_free_gpu_mem_fraction)
    block = found.kv_per_token_per_rank * TOKENS_PER_BLOCK
    if options.max_tokens_in_kv_cache is not None:
        pool = min(pool, math.ceil(options.max_tokens_in_kv_cache / TOKENS_PER_BLOCK) * block)
    blocks = pool // block
    each = _blocks_per_sequence(options)
    return msgspec.structs.replace(
        found,
        kv_pool=pool,
        kv_tokens=blocks * TOKENS_PER_BLOCK,
        kv_tokens_per_sequence=math.ceil(each * TOKENS_PER_BLOCK),
        batch_full=math.floor(blocks / (each * options.max_beam_width)),
    )


def _blocks_per_sequence(options: PlannedEngine) -> float:
    """Blocks that a sequence keeps, each through all layers; with different windows, their mean over a cycle of layers.

    A prompt that is longer than a window needs room for one step of it besides: `temporaryKvCacheLength` in
    cpp/tensorrt_llm/batch_manager/trtGptModelInflightBatching.cpp.
    """
    windows = options.windows or (options.max_seq_len,)
    steps = (min(options.max_num_tokens, max(0, options.max_input_len - window)) for window in windows)
    kept = (min(options.max_seq_len, window + step) for window, step in zip(windows, steps, strict=True))
    return sum(math.ceil(tokens / TOKENS_PER_BLOCK) for tokens in kept) / len(windows)
