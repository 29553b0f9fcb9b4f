"""Checks of a plan against the model's heads and layers, its quantization, and what the GPU computes in."""

from __future__ import annotations

from collections.abc import Iterator

from openai_bls_tensorrt_llm.recipe.gpus import Gpu
from openai_bls_tensorrt_llm.recipe.memory import Estimate, PlannedEngine, quantization_named
from openai_bls_tensorrt_llm.recipe.memory import problems as of_memory
from openai_bls_tensorrt_llm.recipe.model.shapes import ModelShape
from openai_bls_tensorrt_llm.recipe.plan.findings import Findings
from openai_bls_tensorrt_llm.recipe.quantizations import BUILT, KV_CACHE_FORMAT, QUANTIZATIONS, NumberFormat

_GENERATION = {"bfloat16": "Ampere, 8.0", "int8": "Turing, 7.5", "fp8": "Ada, 8.9", "nvfp4": "Blackwell, 10.0"}


def check(shape: ModelShape, options: PlannedEngine, found: Estimate) -> Findings:
    """Problems and notes of an engine with its estimate."""
    problems = (
        *_of_parallelism(shape, options),
        *_of_quantization(shape, options),
        *(_of_gpu(options.gpu, options, found) if options.gpu else ()),
    )
    return Findings(problems=problems, notes=tuple(_notes(shape, options, found)))


def _of_parallelism(shape: ModelShape, options: PlannedEngine) -> Iterator[str]:
    tp = options.tp
    cut = {"attention heads": shape.heads}
    if shape.parameters.experts:
        cut["columns of an expert"] = shape.parameters.expert_width
    if shape.dense_layers:
        cut["columns of the MLP"] = shape.intermediate_size
    for what, size in cut.items():
        if size % tp:
            fitting = ", ".join(str(n) for n in range(1, 65) if all(size % n == 0 for size in cut.values()))
            yield f"--tp-size {tp} does not divide the {size} {what}: give one of {fitting}"
            return
    if max(tp, shape.kv_heads) % min(tp, shape.kv_heads):
        yield (
            f"--tp-size {tp} and the {shape.kv_heads} heads of keys and values do not divide each other: "
            f"give a --tp-size that divides {shape.kv_heads}, or a multiple of it"
        )
    if options.pp > shape.layers:
        yield f"--pp-size {options.pp} is more than the {shape.layers} layers: give at most {shape.layers}"


def _of_quantization(shape: ModelShape, options: PlannedEngine) -> Iterator[str]:
    own, asked = shape.quantization, options.quant
    if asked and options.flow == "pytorch":
        yield f"--quant {asked} is for --flow tensorrt: the PyTorch flow takes a checkpoint that is quantized already"
    elif asked and QUANTIZATIONS[asked].refusal:
        yield f"--quant {asked}: {QUANTIZATIONS[asked].refusal}"
    elif asked and own and asked != own:
        yield f"the checkpoint is quantized already ({own}): leave --quant {asked} out, or take the original one"


def _of_gpu(gpu: Gpu, options: PlannedEngine, found: Estimate) -> Iterator[str]:
    if gpu.refusal:
        yield gpu.refusal
        return
    if found.dtype == "bfloat16" and not gpu.has("bfloat16"):
        yield f"{_lacks(gpu, 'bfloat16')}: give --dtype float16"
    how = quantization_named(found.quant)
    needed = how.number_format if how else None
    if needed and not gpu.has(needed):
        whose = f"--quant {found.quant}" if options.quant else f"the checkpoint's {found.quant}"
        yield f"{_lacks(gpu, needed)}, so {whose} cannot run on it: it has {', '.join(_possible(gpu, options))}"
    elif options.flow == "tensorrt" and _not_on_blackwell(gpu):
        if how and how.not_on_blackwell:
            yield (
                f"TensorRT-LLM builds no engine with {found.quant} weights for {gpu.name} ({gpu.capability}): "
                f"give --quant {' or '.join(_possible(gpu, options))}"
            )
        if options.kv_cache_dtype == "int8":
            yield (
                f"TensorRT-LLM builds no engine with an int8 KV cache for {gpu.name} ({gpu.capability}): "
                "give --kv-cache-dtype auto or fp8"
            )
    cache = KV_CACHE_FORMAT.get(options.kv_cache_dtype)
    if cache and not gpu.has(cache):
        none = "int8" if options.flow == "pytorch" else "nvfp4"
        others = [name for name, needs in KV_CACHE_FORMAT.items() if gpu.has(needs) and name != none]
        yield f"{_lacks(gpu, cache)}: give --kv-cache-dtype {' or '.join(['auto', *others])}"
    yield from of_memory(options, found)


def _not_on_blackwell(gpu: Gpu) -> bool:
    """True where TensorRT-LLM refuses to build engines with INT8 or INT4: compute capability 10.x."""
    return gpu.compute_capability is not None and gpu.compute_capability[0] == 10


def _possible(gpu: Gpu, options: PlannedEngine) -> list[str]:
    """Quantizations of an unquantized checkpoint that run on it."""
    return [
        name
        for name in BUILT
        if ((needed := QUANTIZATIONS[name].number_format) is None or gpu.has(needed))
        and not (options.flow == "tensorrt" and QUANTIZATIONS[name].not_on_blackwell and _not_on_blackwell(gpu))
    ]


def _lacks(gpu: Gpu, number_format: NumberFormat) -> str:
    return f"{gpu.name} ({gpu.capability}) does not compute in {number_format} (from {_GENERATION[number_format]} on)"


def _notes(shape: ModelShape, options: PlannedEngine, found: Estimate) -> Iterator[str]:
    if options.gpu is not None and options.gpu.warning:
        yield options.gpu.warning
    # Where they do not divide each other, there is no such engine.
    if options.tp > shape.kv_heads and options.tp % shape.kv_heads == 0:
        yield (
            f"{options.tp} ranks share {shape.kv_heads} heads of keys and values: "
            f"{options.tp // shape.kv_heads} ranks keep a copy of each, so the cache grows less than the GPUs do"
        )
    if shape.layers % options.pp:
        yield f"{shape.layers} layers over {options.pp} stages: some hold one more, and the numbers are those"
    if shape.sliding_window and shape.sliding_window < options.max_seq_len and not options.windows:
        yield (
            f"some layers look back at most {shape.sliding_window:,} tokens: "
            "the KV cache is counted as if all looked back at everything"
        )
    if found.batch_full is not None and 0 < found.batch_full < options.max_batch_size:
        yield (
            f"of --max-batch-size {options.max_batch_size} sequences, {found.batch_full} fit at full length; "
            "the scheduler holds the others back while they do not fit"
        )
    if options.flow == "pytorch":
        yield "the PyTorch flow builds nothing: it loads the checkpoint at every start"
