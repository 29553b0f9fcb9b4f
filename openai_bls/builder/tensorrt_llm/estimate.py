"""What an engine will take, worked out from the model's shape alone: `build/engine.py --dry-run`.

Weights and KV cache are exact sums. The rest are allowances, held against logs that TensorRT-LLM's users and its own
documentation show (in tests/unit/builder/tensorrt_llm/test_estimate.py):

- **activations**: the tensors of one layer for `max_num_tokens` tokens, which TensorRT reuses from layer to layer, and
  15 % on top;
- **logits**: in the model's type for each sequence (for each token, where those of prompts are kept), in float32 once
  more in the decoder, and 8 steps of these where those of the output are kept;
- **runtime**: CUDA context, kernels and cuBLAS, 0.8 GiB with TensorRT and 1.5 GiB with PyTorch; 0.6 GiB for NCCL and
  all-reduce with several ranks;
- **host memory of a build**: 2.5 times the weights of the engine.

All of it is for one rank, the one that holds the most. GiB are 2^30 bytes throughout.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec

from openai_bls.builder.tensorrt_llm.estimate_checks import notes_on, problems_of
from openai_bls.builder.tensorrt_llm.estimate_text import report
from openai_bls.builder.tensorrt_llm.gpus import GIB, GPUS, Gpu
from openai_bls.builder.tensorrt_llm.quantization import KV_CACHE_BYTES, QUANTISATIONS, Quantisation
from openai_bls.builder.tensorrt_llm.shapes import ModelShape
from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.tensorrt_llm.interface import Flow, KvCacheDtype, Quant

__all__ = ["Estimate", "EstimateOptions", "estimate", "report", "resolved_dtype"]

TOKENS_PER_BLOCK = 32
"""Of the KV cache: `KvCacheConfig.tokens_per_block`."""

_ACTIVATION_MARGIN = 1.15
_LOGITS_CACHE_STEPS = 8
"""`GenerationLogitsCache::kCACHE_LENGTH` of the C++ runtime."""
_RUNTIME_BYTES = {"tensorrt": 8 * GIB // 10, "pytorch": 15 * GIB // 10}
_COMMUNICATION_BYTES = 6 * GIB // 10
_ENGINE_FILE_BYTES = 64 << 20
"""What an engine file holds besides weights."""
_HOST_FACTOR = 2.5
_CALIBRATION_MARGIN = 1.15
_DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}

ModelDtype = Literal["auto", "float16", "bfloat16", "float32"]


class EstimateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be built, in the words of the command line."""

    flow: Flow = "tensorrt"
    dtype: ModelDtype = "auto"
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
    gpu: Gpu | None = None
    """None estimates without one: no batch sizes, but the known GPUs that it would run on."""
    gather_logits: bool = False
    """Keep the logits of the output (for log-probs)."""
    gather_context_logits: bool = False
    """Keep those of prompts as well."""
    checkpoint_bytes: int | None = None
    """Size of the checkpoint's weights on disk; None works it out from the shape."""

    @property
    def ranks(self) -> int:
        """GPUs needed."""
        return self.tp * self.pp


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes. Bytes, unless the name says otherwise; of one rank means of the rank that holds the most."""

    parameters: int
    dtype: str
    """That `auto` stands for."""
    quant: Quant | None
    """Of the weights that will run: asked for, or the checkpoint's own."""
    weights: int
    """Of all ranks together."""
    weights_per_rank: int
    kv_per_token: int
    """Of the model, without the copies that ranks keep of the same head."""
    kv_per_token_per_rank: int
    activations: int
    """Of one rank: the engine's execution context, with the logits that it puts out."""
    decoder: int
    """Of one rank: what sampling works on, and logits that are kept."""
    runtime: int
    """Of one rank: CUDA context, kernels, communication."""
    engine_on_disk: int
    """Of all ranks; 0 where nothing is built (flow `pytorch`)."""
    checkpoint: int
    disk: int
    """That the build needs in all, the checkpoint included."""
    host_memory: int
    """At the build's peak, if all ranks build on this machine at once."""
    build_gpu_memory: int
    """Of each GPU at the build's peak."""
    kv_pool: int | None = None
    """Of one rank: what is left for the KV cache. None without a GPU, as are the next three."""
    kv_tokens: int | None = None
    """That fit in the cache, whole blocks."""
    batch_full: int | None = None
    """Sequences of max_seq_len that the cache holds at once."""
    batch_half: int | None = None
    """Sequences of half that length."""
    fits: tuple[str, ...] | None = None
    """Without a GPU: the names of those known that it would run on."""
    problems: tuple[str, ...] = ()
    """Why it cannot work, a sentence each."""
    notes: tuple[str, ...] = ()

    @property
    def gpu_memory(self) -> int:
        """Of one rank, without any KV cache."""
        return self.weights_per_rank + self.activations + self.decoder + self.runtime


def estimate(shape: ModelShape, options: EstimateOptions) -> Estimate:
    """Work out what `options` will take.

    Raises:
        EngineLoadError: an option has no meaning, such as a size below 1.
    """
    _require_sizes(options)
    dtype = resolved_dtype(shape, options)
    quant = options.quant or _own_quantisation(shape)
    how = QUANTISATIONS[quant] if quant else None
    element = _DTYPE_BYTES[dtype]
    per_rank, all_ranks = _weights(shape, options, element, how)
    kv_element = KV_CACHE_BYTES.get(options.kv_cache_dtype, element)
    kv_rank = math.ceil(
        2 * _stage_layers(shape, options) * _kv_heads_per_rank(shape, options) * shape.head_dim * kv_element
    )
    activations = _activations(shape, options, element, how)
    decoder = _decoder(shape, options)
    runtime = _RUNTIME_BYTES[options.flow] + (_COMMUNICATION_BYTES if options.ranks > 1 else 0)
    # Of the checkpoint as it lies on disk: quantised already, or not yet.
    stored = QUANTISATIONS[own] if (own := _own_quantisation(shape)) else None
    on_disk = _total_weights(shape, _DTYPE_BYTES.get(shape.dtype, 2), stored)
    checkpoint = on_disk if options.checkpoint_bytes is None else options.checkpoint_bytes
    quantises = how is not None and stored is None
    # So do the scales of a quantised cache, whatever the weights are.
    cached = options.flow == "tensorrt" and options.kv_cache_dtype != "auto" and stored is None
    calibrates = (how is not None and how.calibrates and quantises) or cached
    engine = 0 if options.flow == "pytorch" else all_ranks + options.ranks * _ENGINE_FILE_BYTES
    unquantised = math.ceil(_total_weights(shape, element, None) * _CALIBRATION_MARGIN) if calibrates else 0
    found = Estimate(
        parameters=shape.parameters.total,
        dtype=dtype,
        quant=quant,
        weights=all_ranks,
        weights_per_rank=per_rank,
        kv_per_token=shape.kv_bytes_per_token(kv_element),
        kv_per_token_per_rank=kv_rank,
        activations=activations,
        decoder=decoder,
        runtime=runtime,
        engine_on_disk=engine,
        checkpoint=checkpoint,
        # LLM(...) builds in a folder of its own and .save copies; ModelOpt writes the quantised checkpoint down first.
        disk=checkpoint + (2 * engine + (all_ranks if calibrates else 0) if engine else checkpoint),
        host_memory=max(math.ceil(_HOST_FACTOR * all_ranks), unquantised) if engine else checkpoint,
        # A calibration spreads the unquantised model over the GPUs; then the engine is loaded once, to be saved.
        build_gpu_memory=max(per_rank + activations + decoder + runtime, math.ceil(unquantised / options.ranks)),
    )
    if options.gpu is not None:
        found = _with_cache(found, options, options.gpu)
    else:
        found = msgspec.structs.replace(found, fits=_fitting(shape, options))
    return msgspec.structs.replace(
        found, problems=problems_of(shape, options, found), notes=notes_on(shape, options, found)
    )


def resolved_dtype(shape: ModelShape, options: EstimateOptions) -> str:
    """What `auto` stands for: the checkpoint's own, but float16 for one in float32, as TensorRT-LLM has it."""
    if options.dtype != "auto":
        return options.dtype
    return shape.dtype if shape.dtype in ("float16", "bfloat16") else "float16"


def _fitting(shape: ModelShape, options: EstimateOptions) -> tuple[str, ...]:
    each = {gpu.name: estimate(shape, msgspec.structs.replace(options, gpu=gpu)) for gpu in GPUS}
    return tuple(name for name, found in each.items() if not found.problems)


def _require_sizes(options: EstimateOptions) -> None:
    for name in ("tp", "pp", "max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width"):
        if getattr(options, name) < 1:
            flag = {"tp": "tp-size", "pp": "pp-size"}.get(name, name.replace("_", "-"))
            raise EngineLoadError(f"--{flag} must be at least 1")
    if not 0 < options.kv_cache_free_gpu_mem_fraction <= 1:
        raise EngineLoadError("--kv-cache-free-gpu-mem-fraction must be above 0 and at most 1")


def _own_quantisation(shape: ModelShape) -> Quant | None:
    return shape.quantization if shape.quantization in get_args(Quant) else None  # type: ignore[return-value]


def _stage_layers(shape: ModelShape, options: EstimateOptions) -> int:
    return math.ceil(shape.layers / options.pp)


def _kv_heads_per_rank(shape: ModelShape, options: EstimateOptions) -> int:
    """Where there are more ranks than heads, several ranks keep the same one."""
    return math.ceil(shape.kv_heads / options.tp)


def _total_weights(shape: ModelShape, element: int, how: Quantisation | None) -> int:
    counts = shape.parameters
    rest = counts.total - counts.linear
    return math.ceil(counts.linear * (how.bytes_per_weight if how else element)) + rest * element


def _weights(shape: ModelShape, options: EstimateOptions, element: int, how: Quantisation | None) -> tuple[int, int]:
    """Bytes of the fullest rank, and of all ranks together.

    Matrices, embeddings and the output projection are cut into `tp` parts; norms, biases and routers are on each rank,
    and so is a head of keys and values of which there are fewer than ranks.
    """
    counts = shape.parameters
    per_weight = how.bytes_per_weight if how else element
    copied = _kv_heads_per_rank(shape, options) - shape.kv_heads / options.tp
    linear = counts.linear / options.tp + shape.layers * 2 * copied * shape.head_dim * shape.hidden_size
    layers = linear * per_weight + (counts.router + counts.other) * element  # of all layers, on one of `tp` ranks
    table = math.ceil(counts.embedding / options.tp) * element
    head = math.ceil(counts.lm_head / options.tp) * element
    stage = layers * _stage_layers(shape, options) / shape.layers
    if options.pp == 1:
        fullest, both_ends = math.ceil(stage) + table + head, table + head
    else:  # the first stage has the embeddings, the last the output projection, if only a copy of the same table
        fullest, both_ends = math.ceil(stage) + max(table, head), table + (head or table)
    return fullest, options.tp * (math.ceil(layers) + both_ends)


def _activations(shape: ModelShape, options: EstimateOptions, element: int, how: Quantisation | None) -> int:
    query_key_value = shape.heads * shape.head_dim / options.tp
    query_key_value += 2 * _kv_heads_per_rank(shape, options) * shape.head_dim
    if shape.experts:
        inner = (shape.experts_per_token * shape.moe_intermediate_size + shape.shared_intermediate_size) / options.tp
        spread = shape.experts_per_token * shape.hidden_size  # a row for each expert that a token goes to
    else:
        inner, spread = shape.intermediate_size / options.tp, 0
    # Residual, normed input, attention's output and the MLP's; its two inner tensors live at the same time.
    width = 4 * shape.hidden_size + query_key_value + 2 * inner + spread
    layer = options.max_num_tokens * width * element
    if how is not None and how.quantised_activations:
        layer += options.max_num_tokens * (shape.hidden_size + inner)
    sequences = options.max_batch_size * options.max_beam_width
    rows = max(options.max_num_tokens, sequences) if options.gather_context_logits else sequences
    return math.ceil(layer * _ACTIVATION_MARGIN) + rows * shape.vocab_size * element


def _decoder(shape: ModelShape, options: EstimateOptions) -> int:
    steps = 1
    if options.gather_logits or options.gather_context_logits:
        steps += _LOGITS_CACHE_STEPS
    return steps * options.max_batch_size * options.max_beam_width * shape.vocab_size * 4


def _with_cache(found: Estimate, options: EstimateOptions, gpu: Gpu) -> Estimate:
    free = max(0, gpu.memory_bytes - found.gpu_memory)
    pool = math.floor(free * options.kv_cache_free_gpu_mem_fraction)
    blocks = pool // (found.kv_per_token_per_rank * TOKENS_PER_BLOCK)

    def batch(length: int) -> int:
        return blocks // (math.ceil(length / TOKENS_PER_BLOCK) * options.max_beam_width)

    return msgspec.structs.replace(
        found,
        kv_pool=pool,
        kv_tokens=blocks * TOKENS_PER_BLOCK,
        batch_full=batch(options.max_seq_len),
        batch_half=batch(math.ceil(options.max_seq_len / 2)),
    )
