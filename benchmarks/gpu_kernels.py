"""GPU kernels of the embedded engine beside PyTorch's for the same: `python -m benchmarks.gpu_kernels`.

Shapes are those of Qwen2.5-7B in bfloat16. Each contender runs over several sets of inputs, captured in one CUDA graph,
as the engine captures its steps; a time is the median over replays. All contenders of a case get the same numbers, and
one whose result differs from ours is marked. "Contiguous" columns read keys and values that lie in order, which a paged
cache never offers, and write no new ones: a bound for a library, not something the engine could call.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

from openai_bls.embedded import fp8_numbers
from openai_bls.embedded.gpu import (
    attention_kernels,
    few_rows_kernels,
    fp8_kernels,
    fused_kernels,
    paged_attention,
    prompt_attention,
)

Call = Callable[[int], Any]
"""Runs a contender on one set of inputs, given its number."""
Quantize = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Numbers in FP8 and their scales."""

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16
PAGE, LIBRARY_PAGE = 32, 256
"""Tokens per page: the engine's, and the fewest that flash attention's block tables take."""
_CLOSE = 0.03  # relative to the largest value
_CLOSE_IN_FP8 = 0.06  # rounding rows to FP8 alone makes 0.026 to 0.029 of normal numbers
_SETS_BYTES = 256e6  # of keys and values over all sets of inputs: several times the L2 cache
_REPLAYS = 20
_ALONE = [(512, 0, 0), (2048, 0, 0), (8192, 0, 0), (512, 1536, 0), (2048, 6144, 0), (8192, 16384, 0)]
_STEPS = [*_ALONE, (512, 0, 15), (512, 1536, 63), (2048, 6144, 63), (256, 0, 255)]
"""Tokens of a prompt, tokens before them in the cache, and sequences with one new token beside it."""


@dataclass(frozen=True)
class Model:
    """Shape of the model whose layers are timed."""

    heads: int = 28
    kv_heads: int = 4
    size: int = 128
    hidden: int = 3584
    intermediate: int = 18944
    vocabulary: int = 152064


@dataclass
class Case:
    """One kernel at one size: microseconds per call by contender, ours first."""

    kernel: str
    size: str
    us: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    """Errors and differing results, by contender."""


def normal(*shape: int) -> torch.Tensor:
    """Random numbers."""
    return torch.randn(*shape, device=DEVICE, dtype=DTYPE)


def ends(lengths: list[int]) -> torch.Tensor:
    """Running total of `lengths`, from 0."""
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0).to(torch.int32)


def time_us(call: Call, sets: int) -> float:
    """Microseconds per call: the median over replays of a graph with one call for each set of inputs."""
    if DEVICE.type != "cuda":
        return float("nan")
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(sets):
            call(i)
    times: list[float] = []
    for _ in range(3 + _REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / sets)
    return statistics.median(times[3:])


def measure(case: Case, contenders: dict[str, Call], sets: int, close: float = _CLOSE) -> Case:
    """Time all contenders and hold their results against the first one's."""
    wanted: torch.Tensor | None = None
    for name, call in contenders.items():
        try:
            found = call(0)
            found = (found[0] if isinstance(found, tuple) else found).float().flatten()
            wanted = found.clone() if wanted is None else wanted
            difference = float((found - wanted).abs().max() / wanted.abs().max())
            if not difference <= close:
                case.notes[name] = f"differs by {difference:.2g}"
            case.us[name] = time_us(call, sets)
        except Exception as error:  # of compilers, and of releases without a feature
            case.notes[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
    print(case, file=sys.stderr, flush=True)
    return case


def packed_attention(model: Model, size: str, queries: list[int], keys: list[int]) -> Case:
    """Attention of packed sequences over a paged cache, whose pages happen to lie in order.

    Args:
        queries: tokens per sequence that ask; 1 for all means decoding.
        keys: tokens per sequence in the cache, those that ask included; multiples of 256.
    """
    from torch.nn.attention import varlen

    total, batch, scale = sum(keys), len(keys), float(model.size**-0.5)
    decoding, on_gpu = max(queries) == 1, DEVICE.type == "cuda"
    sets = max(2, min(64, round(_SETS_BYTES / (total * model.kv_heads * model.size * 4))))
    q = [normal(sum(queries), model.heads, model.size) for _ in range(sets)]
    k, v = ([normal(total, model.kv_heads, model.size) for _ in range(sets)] for _ in range(2))
    query_ends, key_ends, slots = ends(queries), ends(keys), torch.arange(total, device=DEVICE)
    newest = torch.cat([slots[end - n : end] for n, end in zip(queries, key_ends[1:].tolist(), strict=True)])
    # The new tokens' keys and values go to the cache first; the decode kernel does that by itself.
    new_k, new_v = [x[newest] for x in k], [x[newest] for x in v]

    def page_table(page: int) -> torch.Tensor:
        firsts = key_ends[:-1, None] // page
        return firsts + torch.arange(max(keys) // page, dtype=torch.int32, device=DEVICE)

    def write(i: int) -> None:
        k[i].index_copy_(0, newest, new_k[i])
        v[i].index_copy_(0, newest, new_v[i])

    pages, library_pages = page_table(PAGE), page_table(LIBRARY_PAGE)
    processors = attention_kernels.processors(DEVICE) if on_gpu else 8

    def ours(i: int) -> torch.Tensor:
        if decoding:
            return attention_kernels.decode_attention(
                q[i], new_k[i], new_v[i], k[i], v[i], pages, key_ends, PAGE, scale, processors
            )
        write(i)
        return attention_kernels.mixed_attention(q[i], k[i], v[i], slots, query_ends, key_ends, scale)

    known = inspect.signature(varlen.varlen_attn).parameters
    fixed: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in known else {}

    def flash(i: int, keys_and_values: list[torch.Tensor], totals: Any, **named: Any) -> Any:
        longest = max(queries), max(keys)
        named |= fixed | {"window_size": (-1, 0)}
        return varlen.varlen_attn(q[i], *keys_and_values, query_ends, totals, *longest, **named)

    def by_pages(i: int) -> Any:
        write(i)
        cache = [x.view(-1, LIBRARY_PAGE, model.kv_heads, model.size) for x in (k[i], v[i])]
        return flash(i, cache, None, seqused_k=key_ends.diff(), block_table=library_pages)

    def copied(i: int) -> Any:
        write(i)
        return flash(i, [x.index_select(0, slots) for x in (k[i], v[i])], key_ends)

    contenders: dict[str, Call] = {"ours": ours}
    contenders |= {"varlen_attn, block table": by_pages} if "block_table" in known else {}
    contenders |= {"varlen_attn, keys copied": copied}
    contenders |= {"varlen_attn, contiguous": lambda i: flash(i, [k[i], v[i]], key_ends)}
    if decoding:
        from torch.nn.attention.flex_attention import flex_attention

        def dense(attention: Any) -> Call:
            def heads(x: torch.Tensor) -> torch.Tensor:
                return x.view(batch, x.shape[0] // batch, -1, model.size).transpose(1, 2)

            return lambda i: attention(heads(q[i]), heads(k[i]), heads(v[i]), enable_gqa=True).transpose(1, 2)

        contenders["SDPA, contiguous"] = dense(functional.scaled_dot_product_attention)
        if keys[0] == 2048 and on_gpu:
            contenders["flex_attention, contiguous"] = dense(torch.compile(flex_attention, dynamic=False))
    return measure(Case("decode_attention" if decoding else "mixed_attention", size), contenders, sets)


def long_prompt(model: Model, prompt: int, past: int) -> Case:
    """Attention of a piece of one prompt over keys that are copied together first, as the engine does in each layer."""
    kernel = paged_attention.prompt_kernel(DEVICE, DTYPE, model.heads, model.kv_heads, model.size)
    assert kernel is not None
    length, scale = past + prompt, float(model.size**-0.5)
    sets = max(2, min(16, round(_SETS_BYTES / (length * model.kv_heads * model.size * 4))))
    q = [normal(prompt, model.heads, model.size) for _ in range(sets)]
    k, v = ([normal(length, model.kv_heads, model.size) for _ in range(sets)] for _ in range(2))
    slots = torch.arange(length, device=DEVICE)
    out = torch.empty_like(q[0])

    def ours(i: int) -> torch.Tensor:
        kernel(q[i], k[i].index_select(0, slots), v[i].index_select(0, slots), out, scale)
        return out

    def by_triton(i: int) -> torch.Tensor:
        prompt_attention.prompt_attention(q[i], k[i], v[i], out, scale)
        return out

    def by_cudnn(i: int) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            query, key, value = (x[None].transpose(1, 2) for x in (q[i], k[i], v[i]))
            found = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return found.transpose(1, 2)[0]

    contenders: dict[str, Call] = {"ours": ours, "for any GPU, contiguous": by_triton}
    contenders |= {} if past else {"cuDNN, contiguous": by_cudnn}
    return measure(Case("prompt_attention", f"{prompt:,} after {past:,}"), contenders, sets)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The norm as transformers computes it."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The norm of a residual add as transformers computes them."""
    return rms_norm(residual + x, weight)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """The gate of a feed-forward layer as transformers computes it."""
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate) * up


_SMALL: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "rms_norm": (lambda x, weight: fused_kernels.rms_norm(x, weight, 1e-6), rms_norm),
    "add_rms_norm": (
        lambda x, residual, weight: fused_kernels.add_rms_norm(x, residual, weight, 1e-6)[1],
        add_rms_norm,
    ),
    "silu_mul": (fused_kernels.silu_mul, silu_mul),
    "rotary": (fused_kernels.rotary, apply_rotary_pos_emb),
}
"""By kernel: ours, and transformers'."""


def small_inputs(model: Model, name: str, tokens: int) -> tuple[torch.Tensor, ...]:
    """Arguments of one of `_SMALL`."""
    if name == "rms_norm":
        return normal(1, tokens, model.hidden), normal(model.hidden)
    if name == "add_rms_norm":
        return normal(1, tokens, model.hidden), normal(1, tokens, model.hidden), normal(model.hidden)
    if name == "silu_mul":
        return (normal(1, tokens, 2 * model.intermediate),)
    joined = normal(1, tokens, model.heads + 2 * model.kv_heads, model.size).transpose(1, 2)
    q, k, _ = joined.split((model.heads, model.kv_heads, model.kv_heads), 1)
    return q, k, normal(1, tokens, model.size), normal(1, tokens, model.size)


def _apply(function: Callable[..., Any], sets: Sequence[tuple[Any, ...]], i: int) -> Any:
    return function(*sets[i])


def _scales(quantize: Quantize, x: torch.Tensor) -> torch.Tensor:
    # Only scales are compared: rounding a tie the other way moves a number in FP8 by a sixteenth.
    return quantize(x)[1]


def _by_fp8_rows(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return fp8_kernels.scaled_product(*fp8_kernels.quantize_rows(x), weight, scale, None, x.dtype)


def fp8_products(model: Model, rows: tuple[int, ...]) -> list[Case]:
    """Products of each number of rows with weights in FP8, and the rounding of the rows; up to 16 are not rounded."""
    joined = (model.heads + 2 * model.kv_heads) * model.size
    shapes = {
        "qkv": (joined, model.hidden),
        "o": (model.hidden, model.heads * model.size),
        "gate, up": (2 * model.intermediate, model.hidden),
        "down": (model.hidden, model.intermediate),
        "logits": (model.vocabulary, model.hidden),
    }
    cases = []
    for name, (outputs, size) in shapes.items():
        count = max(2, min(16, round(_SETS_BYTES / (outputs * size))))
        weights = [fp8_numbers.quantize_weight(normal(outputs, size)) for _ in range(count)]
        wide = [(weight.float() * scale).to(DTYPE) for weight, scale in weights]
        for number in rows:
            x = normal(1, number, size)
            plain = [(x, weight, None) for weight in wide]
            contenders: dict[str, Call] = {
                "ours": functools.partial(_apply, fp8_kernels.linear, [(x, *weight, None) for weight in weights]),
                "functional.linear, not FP8": functools.partial(_apply, functional.linear, plain),
            }
            if few_rows_kernels.takes(x):
                contenders["ours, not FP8"] = functools.partial(_apply, few_rows_kernels.linear, plain)
                contenders["rows rounded to FP8"] = functools.partial(
                    _apply, _by_fp8_rows, [(x[0], *w) for w in weights]
                )
            cases.append(measure(Case("FP8 product", f"{name}, {number:,}"), contenders, count, _CLOSE_IN_FP8))
    for number in rows[1:]:
        inputs = [(normal(number, model.hidden),) for _ in range(8)]
        functions: dict[str, Quantize] = {"ours": fp8_kernels.quantize_rows, "eager": fp8_numbers.quantize_weight}
        contenders = {
            name: functools.partial(_apply, functools.partial(_scales, one), inputs) for name, one in functions.items()
        }
        cases.append(measure(Case("quantize_rows", f"{number:,}"), contenders, len(inputs)))
    return cases


def small_kernels(model: Model, sizes: tuple[int, ...]) -> tuple[list[Case], dict[str, float]]:
    """Norms, gates and rotations of each number of tokens, and the seconds to compile transformers' for any number."""
    cases, seconds = [], {}
    for name, (ours, plain) in _SMALL.items():
        contenders: dict[str, Callable[..., Any]] = {"ours": ours, "eager": plain}
        if DEVICE.type == "cuda":
            contenders["torch.compile"] = torch.compile(plain, dynamic=True)
            started = time.monotonic()
            contenders["torch.compile"](*small_inputs(model, name, 3))
            seconds[name] = time.monotonic() - started
        if name == "rms_norm":
            contenders["functional.rms_norm"] = lambda x, weight: functional.rms_norm(x, weight.shape, weight, 1e-6)
        for tokens in sizes:
            sets = [small_inputs(model, name, tokens) for _ in range(8)]
            calls: dict[str, Call] = {key: functools.partial(_apply, one, sets) for key, one in contenders.items()}
            cases.append(measure(Case(name, f"{tokens:,}"), calls, len(sets)))
    return cases, seconds


def markdown(cases: list[Case]) -> str:
    """A table for each kernel: ours in µs, and every other contender's time over ours."""
    parts = []
    for kernel in dict.fromkeys(case.kernel for case in cases):
        rows = [case for case in cases if case.kernel == kernel]
        names = list(dict.fromkeys(name for case in rows for name in (*case.us, *case.notes) if name != "ours"))
        lines = [f"| {kernel} | ours, µs | {' | '.join(names)} |", f"| --- |{' ---: |' * (len(names) + 1)}"]
        for case in rows:
            mine = case.us.get("ours", float("nan"))
            cells = [f"{case.us[name] / mine:.2f}" if name in case.us else "n/a" for name in names]
            lines.append(f"| {case.size} | {mine:,.1f} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def groups(model: Model) -> Iterator[list[Case]]:
    """All cases but those of small kernels."""
    yield [
        packed_attention(model, f"{batch} × {context:,}", [1] * batch, [context] * batch)
        for batch in (1, 16, 64, 256)
        for context in (256, 2048, 8192)
    ]
    yield [long_prompt(model, prompt, past) for prompt, past, _ in _ALONE]
    yield fp8_products(model, (1, 2, 9, 16, 64, 1024))
    yield [
        packed_attention(
            model,
            f"{prompt:,} after {past:,}" + f", beside {others} × 2,048" * bool(others),
            [prompt, *[1] * others],
            [past + prompt, *[2048] * others],
        )
        for prompt, past, others in _STEPS
    ]


def main() -> int:
    """The command; returns the exit code: 1 if a contender's result differs from ours."""
    torch.manual_seed(0)
    small, seconds = small_kernels(Model(), (1, 16, 64, 256, 2048, 8192))
    compiling = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}. Seconds to compile, cold: {compiling}.")
    differs = False
    for cases in itertools.chain([small], groups(Model())):
        print(f"\n{markdown(cases)}", flush=True)
        differs |= any("differs" in note for case in cases for note in case.notes.values())
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
