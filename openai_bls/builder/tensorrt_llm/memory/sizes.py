"""Memory and disk that an engine takes, from the shape of the model alone.

Weights and KV cache are exact sums. The rest are allowances, held against logs that TensorRT-LLM's users and its own
documentation show (in tests/unit/builder/tensorrt_llm/test_estimate.py):

- **activations**: the tensors of one layer for `max_num_tokens` tokens, which TensorRT reuses from layer to layer, and
  15 % on top;
- **logits**: in the model's type for each sequence, in float32 once more in the decoder, and 8 steps of these where
  those of the output are kept;
- **states**: of each sequence in the batch, for hybrids; in the model's type, unless config.json says float32;
- **runtime**: CUDA context, kernels and cuBLAS, 0.8 GiB with TensorRT and 1.5 GiB with PyTorch; 0.6 GiB for NCCL and
  all-reduce with several ranks;
- **host memory of a build**: 2.5 times the weights of the engine.

All of it is for one rank, the one that holds the most. GiB are 2^30 bytes throughout.
"""

from __future__ import annotations

import math

import msgspec

from openai_bls.builder.options.quantizations import (
    CHECKPOINT_ONLY,
    KV_CACHE_BYTES,
    QUANTIZATIONS,
    Quantization,
)
from openai_bls.builder.tensorrt_llm.memory.gpus import GIB, Gpu
from openai_bls.builder.tensorrt_llm.model.shapes import ModelShape
from openai_bls.core.manifest import BuildError, Dtype
from openai_bls.engines.tensorrt_llm.installed.interface import Flow, KvCacheDtype, Quant

TOKENS_PER_BLOCK = 32
"""Tokens per block of the KV cache: `KvCacheConfig.tokens_per_block`."""

_ACTIVATION_MARGIN = 1.15
_LOGITS_CACHE_STEPS = 8
"""`GenerationLogitsCache::kCACHE_LENGTH` of the C++ runtime."""
_RUNTIME_BYTES = {"tensorrt": 8 * GIB // 10, "pytorch": 15 * GIB // 10}
_COMMUNICATION_BYTES = 6 * GIB // 10
_ENGINE_FILE_BYTES = 64 << 20
"""Bytes of an engine file besides the weights."""
_HOST_FACTOR = 2.5
_CALIBRATION_MARGIN = 1.15
_DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


class PlannedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """An engine with everything decided that its size depends on, in the words of the command line."""

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
    """GPU of each rank; None estimates without one: no batch sizes, but the known GPUs that it would run on."""
    gather_logits: bool = False
    """Keep the logits of the output (for log-probabilities)."""
    checkpoint_bytes: int | None = None
    """Size of the checkpoint's weights on disk; None computes it from the shape."""

    @property
    def ranks(self) -> int:
        """GPUs needed."""
        return self.tp * self.pp

    def limited(self, kv_tokens: int | None) -> bool:
        """True if `max_tokens_in_kv_cache` is why the KV cache holds no more than `kv_tokens`."""
        return (
            self.max_tokens_in_kv_cache is not None
            and kv_tokens is not None
            and (kv_tokens >= self.max_tokens_in_kv_cache)
        )


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
    activations: int
    """Bytes per rank of the execution context, with the logits that it puts out."""
    decoder: int
    """Bytes per rank of what sampling works on, and of logits that are kept."""
    states: int
    """Bytes per rank of the states of `max_batch_size` sequences, which hybrids keep besides keys and values."""
    runtime: int
    """Bytes per rank of CUDA context, kernels and communication."""
    engine_on_disk: int
    """Bytes of all ranks; 0 where nothing is built (flow `pytorch`)."""
    checkpoint: int
    disk: int
    """Bytes of disk that the build needs, the checkpoint included."""
    host_memory: int
    """Bytes of memory at the build's peak, if all ranks build on this machine at once."""
    build_gpu_memory: int
    """Bytes of each GPU at the build's peak."""
    kv_pool: int | None = None
    """Bytes per rank for the KV cache. None without a GPU, as are the next four."""
    kv_tokens: int | None = None
    """Tokens that fit in the KV cache, whole blocks."""
    kv_tokens_per_sequence: int | None = None
    """Tokens that a sequence of max_seq_len keeps in the KV cache: fewer than these with attention windows."""
    batch_full: int | None = None
    """Sequences of max_seq_len tokens that the KV cache holds at once."""
    batch_half: int | None = None
    """Sequences of half that length."""
    fits: tuple[str, ...] | None = None
    """Names of the known GPUs that it would run on, if no GPU is given."""
    problems: tuple[str, ...] = ()
    """Problems that keep it from working, a sentence each."""
    notes: tuple[str, ...] = ()

    @property
    def gpu_memory(self) -> int:
        """Bytes per rank, without any KV cache."""
        return self.weights_per_rank + self.activations + self.decoder + self.states + self.runtime


def quantization_named(name: str) -> Quantization | None:
    """Quantization of weights by a name of `Quant` or `CHECKPOINT_ONLY`; None if its size is not known."""
    return QUANTIZATIONS.get(name) or CHECKPOINT_ONLY.get(name)  # type: ignore[call-overload]


def sizes_of(shape: ModelShape, options: PlannedEngine) -> Estimate:
    """Sizes without problems and notes.

    Raises:
        BuildError: an option has no meaning, such as a size below 1.
    """
    _require_sizes(options)
    # As TensorRT-LLM has it: the checkpoint's own, but float16 for one in float32.
    own_dtype = shape.dtype if shape.dtype in ("float16", "bfloat16") else "float16"
    dtype = own_dtype if options.dtype == "auto" else options.dtype
    element = _DTYPE_BYTES[dtype]
    stored = quantization_named(shape.quantization)
    quant = options.quant or (shape.quantization if stored else "")
    how = quantization_named(quant)
    per_rank, all_ranks = _weights(shape, options, element, how)
    kv_element = KV_CACHE_BYTES.get(options.kv_cache_dtype, element)
    cached = math.ceil(shape.cache_layers / options.pp) * shape.cache_elements(_kv_heads_per_rank(shape, options))
    activations = _activations(shape, options, element, how)
    steps = 1 + (_LOGITS_CACHE_STEPS if options.gather_logits else 0)
    decoder = steps * options.max_batch_size * options.max_beam_width * shape.vocab_size * 4
    runtime = _RUNTIME_BYTES[options.flow] + (_COMMUNICATION_BYTES if options.ranks > 1 else 0)
    on_disk = _total_weights(shape, _DTYPE_BYTES.get(shape.dtype, 2), stored)
    checkpoint = on_disk if options.checkpoint_bytes is None else options.checkpoint_bytes
    built = options.flow == "tensorrt"
    # The scales of a quantized cache are calibrated too, whatever the weights are.
    scaled_cache = built and options.kv_cache_dtype != "auto"
    calibrates = stored is None and (scaled_cache or (how is not None and how.calibrates))
    engine = all_ranks + options.ranks * _ENGINE_FILE_BYTES if built else 0
    unquantized = math.ceil(_total_weights(shape, element, None) * _CALIBRATION_MARGIN) if calibrates else 0
    found = Estimate(
        parameters=shape.parameters.total,
        dtype=dtype,
        quant=quant,
        weights=all_ranks,
        weights_per_rank=per_rank,
        kv_per_token=shape.kv_bytes_per_token(kv_element),
        kv_per_token_per_rank=math.ceil(cached * kv_element),
        activations=activations,
        decoder=decoder,
        states=math.ceil(options.max_batch_size * shape.states.bytes_of(element) / options.ranks),
        runtime=runtime,
        engine_on_disk=engine,
        checkpoint=checkpoint,
        # LLM(...) builds in a folder of its own and .save copies; ModelOpt writes the quantized checkpoint down first.
        disk=checkpoint + (2 * engine + (all_ranks if calibrates else 0) if built else checkpoint),
        host_memory=max(math.ceil(_HOST_FACTOR * all_ranks), unquantized) if built else checkpoint,
        # A calibration spreads the unquantized model over the GPUs; then the engine is loaded once, to be saved.
        build_gpu_memory=max(per_rank + activations + decoder + runtime, math.ceil(unquantized / options.ranks)),
    )
    return found if options.gpu is None else _with_cache(found, options, options.gpu)


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


def _total_weights(shape: ModelShape, element: int, how: Quantization | None) -> int:
    counts = shape.parameters
    return math.ceil(_linear_weights(shape, element, how)) + (counts.total - counts.linear) * element


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


def _activations(shape: ModelShape, options: PlannedEngine, element: int, how: Quantization | None) -> int:
    counts = shape.parameters
    query_key_value = shape.heads * shape.head_dim / options.tp
    query_key_value += 2 * _kv_heads_per_rank(shape, options) * shape.head_dim
    if counts.experts:
        inner = (shape.experts_per_token * counts.expert_width + counts.shared_expert_width) / options.tp
        spread = shape.experts_per_token * shape.hidden_size  # a row for each expert that a token goes to
    else:
        inner, spread = shape.intermediate_size / options.tp, 0
    # Residual, normed input, attention's output and the MLP's; its two inner tensors live at the same time.
    width = 4 * shape.hidden_size + query_key_value + 2 * inner + spread
    layer = options.max_num_tokens * width * element
    if how is not None and how.quantized_activations:
        layer += options.max_num_tokens * (shape.hidden_size + inner)
    logits = options.max_batch_size * options.max_beam_width * shape.vocab_size * element
    return math.ceil(layer * _ACTIVATION_MARGIN) + logits


def _with_cache(found: Estimate, options: PlannedEngine, gpu: Gpu) -> Estimate:
    free = max(0, gpu.memory_bytes - found.gpu_memory)
    pool = math.floor(free * options.kv_cache_free_gpu_mem_fraction)
    block = found.kv_per_token_per_rank * TOKENS_PER_BLOCK
    if options.max_tokens_in_kv_cache is not None:
        pool = min(pool, math.ceil(options.max_tokens_in_kv_cache / TOKENS_PER_BLOCK) * block)
    blocks = pool // block
    full, half = (_blocks(options, length) for length in (options.max_seq_len, math.ceil(options.max_seq_len / 2)))
    return msgspec.structs.replace(
        found,
        kv_pool=pool,
        kv_tokens=blocks * TOKENS_PER_BLOCK,
        kv_tokens_per_sequence=math.ceil(full * TOKENS_PER_BLOCK),
        batch_full=math.floor(blocks / (full * options.max_beam_width)),
        batch_half=math.floor(blocks / (half * options.max_beam_width)),
    )


def _blocks(options: PlannedEngine, length: int) -> float:
    """Blocks that a sequence keeps, each through all layers; with different windows, their mean over a cycle of layers.

    A prompt that is longer than a window needs room for one step of it besides: `temporaryKvCacheLength` in
    cpp/tensorrt_llm/batch_manager/trtGptModelInflightBatching.cpp.
    """

    def kept(window: int) -> int:
        return min(length, window + min(options.max_num_tokens, max(0, options.max_input_len - window)))

    windows = options.windows or (length,)
    return sum(math.ceil(kept(window) / TOKENS_PER_BLOCK) for window in windows) / len(windows)
