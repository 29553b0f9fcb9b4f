"""The Triton kernels against plain PyTorch: on a GPU, or elsewhere by Triton's interpreter (see conftest.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from openai_bls_transformers import fp8_numbers
from openai_bls_transformers.attention_spec import Scoring
from openai_bls_transformers.gpu import (
    attention_kernels,
    fp8_kernels,
    hopper_attention,
    prompt_attention,
    vector_kernels,
)
from tests.paths import COMPILED
from tests_transformers.engine.gpu import reference_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter multiplies bfloat16 wrongly.
DTYPES = [torch.float16, torch.bfloat16] if torch.cuda.is_available() else [torch.float16]
PAGE = 16


def normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, device=DEVICE)


def ends(*lengths: int) -> torch.Tensor:
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0).to(torch.int32)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found.float().cpu(), wanted.float().cpu(), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "processors", "rotates"),
    [
        (14, 2, 128, 1, False),
        (14, 2, 128, 40, True),
        (4, 4, 80, 1, True),
        (4, 4, 80, 40, False),
        (8, 1, 64, 1, False),
        (8, 1, 64, 40, True),
    ],
)
def test_decoding(dtype: torch.dtype, heads: int, kv_heads: int, size: int, processors: int, rotates: bool) -> None:
    torch.manual_seed(0)
    lengths = [1, 5, 64, 65, 300, 0]
    pages = torch.randperm(120, device=DEVICE).to(torch.int32).view(6, 20)
    caches = [normal(120 * PAGE, kv_heads, size, dtype=dtype) for _ in range(2)]
    copies = [cache.float().cpu() for cache in caches]
    q, k, v = (normal(6, rows, size, dtype=dtype) for rows in (heads, kv_heads, kv_heads))
    key_cache, value_cache = caches
    scale, key_ends = size**-0.5, ends(*lengths)
    angles = (normal(6, size, dtype=dtype), normal(6, size, dtype=dtype)) if rotates else None
    found = attention_kernels.decode_attention(
        q, k, v, key_cache, value_cache, pages, key_ends, PAGE, scale, processors, angles
    )
    key_copy, value_copy = copies
    q, k, v = (x.float().cpu() for x in (q, k, v))
    wide_angles = None if angles is None else (angles[0].float().cpu(), angles[1].float().cpu())
    wanted = reference_kernels.decode_attention(
        q, k, v, key_copy, value_copy, pages.cpu(), key_ends.cpu(), PAGE, scale, processors, wide_angles
    )
    close(found[:5], wanted[:5])
    assert not found[5].any()
    for cache, copy in zip(caches, copies, strict=True):
        close(cache, copy)  # the new tokens were written, and nothing else


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(14, 2, 128), (4, 4, 80)])
def test_mixed(dtype: torch.dtype, heads: int, kv_heads: int, size: int) -> None:
    torch.manual_seed(0)
    queries, keys = [1, 7, 20, 1, 0], [133, 7, 170, 1, 0]
    query_ends, key_ends = ends(*queries), ends(*keys)
    q = normal(32, heads, size, dtype=dtype)
    k, v = (normal(400, kv_heads, size, dtype=dtype) for _ in range(2))
    slots = torch.randperm(400, device=DEVICE)[: sum(keys)]
    found = attention_kernels.mixed_attention(q, k, v, slots, query_ends, key_ends, size**-0.5)
    q, k, v = (x.float().cpu() for x in (q, k, v))
    wanted = reference_kernels.mixed_attention(
        q,
        k,
        v,
        slots.cpu(),
        query_ends.cpu(),
        key_ends.cpu(),
        size**-0.5,
    )
    close(found[:29], wanted[:29])


def scored(window: int, cap: float, heads: int, dtype: torch.dtype) -> tuple[Scoring, Scoring]:
    """Scoring of a layer with sinks if it has a cap or a small window, and the same in float32 on the CPU."""
    sinks = 2 * normal(heads, dtype=dtype) if cap or window == 17 else None
    wide = None if sinks is None else sinks.float().cpu()
    return Scoring(window, cap, sinks), Scoring(window, cap, wide)


SCORINGS = [(17, 0.0), (64, 0.0), (200, 1.5), (1000, 0.0), (0, 1.5)]
"""Windows, and caps of the scores."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(4, 2, 256), (8, 1, 64)])
@pytest.mark.parametrize(("place", "window", "cap"), [(place, *scoring) for place, scoring in enumerate(SCORINGS)])
def test_decoding_with_windows(
    dtype: torch.dtype, heads: int, kv_heads: int, size: int, place: int, window: int, cap: float
) -> None:
    """By few programs with one kind of heads and by many with the other, in turn."""
    processors = (1, 40)[(place + kv_heads) % 2]
    torch.manual_seed(0)
    lengths = [1, 17, 18, 65, 300, 0]
    pages = torch.randperm(120, device=DEVICE).to(torch.int32).view(6, 20)
    key_cache, value_cache = (normal(120 * PAGE, kv_heads, size, dtype=dtype) for _ in range(2))
    wide = [cache.float().cpu() for cache in (key_cache, value_cache)]
    q, k, v = (normal(6, rows, size, dtype=dtype) for rows in (heads, kv_heads, kv_heads))
    scoring, wide_scoring = scored(window, cap, heads, dtype)
    places = PAGE, size**-0.5, processors, None
    found = attention_kernels.decode_attention(
        q, k, v, key_cache, value_cache, pages, ends(*lengths), *places, scoring=scoring
    )
    q, k, v = (x.float().cpu() for x in (q, k, v))
    wanted = reference_kernels.decode_attention(
        q, k, v, wide[0], wide[1], pages.cpu(), ends(*lengths).cpu(), *places, scoring=wide_scoring
    )
    close(found[:5], wanted[:5])
    assert not found[5].any()
    close(key_cache, wide[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "size", "split"), [(4, 2, 256, False), (4, 1, 64, True)])
@pytest.mark.parametrize(("window", "cap"), SCORINGS)
def test_mixed_with_windows(
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    size: int,
    split: bool,
    window: int,
    cap: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention_kernels, "_LEAST_SHARE_TILES", 1)
    torch.manual_seed(0)
    queries, keys = ends(1, 7, 20, 1, 0), ends(210, 7, 271, 1, 0)
    q = normal(32, heads, size, dtype=dtype)
    k, v = (normal(500, kv_heads, size, dtype=dtype) for _ in range(2))
    slots = torch.randperm(500, device=DEVICE)[:489]
    scoring, wide_scoring = scored(window, cap, heads, dtype)
    found = attention_kernels.mixed_attention(
        q, k, v, slots, queries, keys, size**-0.5, split_keys=split, scoring=scoring
    )
    q, k, v = (x.float().cpu() for x in (q, k, v))
    wanted = reference_kernels.mixed_attention(
        q, k, v, slots.cpu(), queries.cpu(), keys.cpu(), size**-0.5, scoring=wide_scoring
    )
    close(found[:29], wanted[:29])


@pytest.mark.parametrize("processors", [1, 12])
def test_a_cache_in_fp8(processors: int) -> None:
    torch.manual_seed(0)
    dtype, heads, kv_heads, size = DTYPES[-1], 6, 2, 64

    def in_fp8(*shape: int) -> torch.Tensor:
        """Numbers that the interpreter need not round."""
        return normal(*shape, dtype=torch.float32).to(torch.float8_e4m3fn)

    caches = [in_fp8(40 * PAGE, kv_heads, size) for _ in range(2)]
    copies = [cache.float().cpu() for cache in caches]
    pages = torch.randperm(40, device=DEVICE).to(torch.int32).view(4, 10)
    q = normal(4, heads, size, dtype=dtype)
    k, v = (in_fp8(4, kv_heads, size).to(dtype) for _ in range(2))
    k[0, 0, 0], v[0, 0, 0] = 5000, -5000  # more than FP8 has
    key_ends, scale = ends(1, 64, 65, 130), size**-0.5
    keys, values = caches
    found = attention_kernels.decode_attention(q, k, v, keys, values, pages, key_ends, PAGE, scale, processors)
    q, k, v = (x.float().cpu() for x in (q, k, v))
    wanted = reference_kernels.decode_attention(
        q, k, v, copies[0], copies[1], pages.cpu(), key_ends.cpu(), PAGE, scale, processors
    )
    close(found, wanted)
    for cache, copy in zip(caches, copies, strict=True):
        assert torch.equal(cache.float().cpu(), copy.clamp(-448, 448))
    query_ends, key_ends = ends(1, 20, 7), ends(70, 133, 7)
    q, slots = normal(28, heads, size, dtype=dtype), torch.randperm(40 * PAGE, device=DEVICE)[:210]
    found = attention_kernels.mixed_attention(q, keys, values, slots, query_ends, key_ends, scale)
    wide = [x.float().cpu() for x in (q, keys, values)]
    bounds = [x.cpu() for x in (slots, query_ends, key_ends)]
    close(found, reference_kernels.mixed_attention(wide[0], wide[1], wide[2], bounds[0], bounds[1], bounds[2], scale))


@pytest.mark.parametrize(("size", "few"), [(64, 8), (80, 512)])
def test_mixed_with_split_keys(monkeypatch: pytest.MonkeyPatch, size: int, few: int) -> None:
    monkeypatch.setattr(attention_kernels, "_LEAST_SHARE_TILES", 1)
    monkeypatch.setattr(attention_kernels, "_FEW_QUERIES", few)
    torch.manual_seed(0)
    queries, keys = ends(1, 34, 3, 0), ends(400, 170, 3, 0)
    q = normal(40, 4, size, dtype=DTYPES[0])
    k, v = (normal(573, 2, size, dtype=DTYPES[0]) for _ in range(2))
    slots = torch.randperm(573, device=DEVICE)
    wanted = attention_kernels.mixed_attention(q, k, v, slots, queries, keys, size**-0.5)
    close(attention_kernels.mixed_attention(q, k, v, slots, queries, keys, size**-0.5, split_keys=True), wanted)


def test_mixed_leaves_long_prompts_out() -> None:
    queries, keys = ends(3, 40, 1), ends(5, 40, 9)
    q, k, v = (normal(rows, heads, 64, dtype=DTYPES[0]) for rows, heads in ((44, 2), (54, 1), (54, 1)))
    slots = torch.arange(54, device=DEVICE)
    whole = attention_kernels.mixed_attention(q, k, v, slots, queries, keys, 0.125)
    found = attention_kernels.mixed_attention(q, k, v, slots, queries, keys, 0.125, most_queries=39)
    assert not found[3:43].any()
    assert torch.equal(found[:3], whole[:3])
    assert torch.equal(found[43:], whole[43:])


LONG_PROMPTS = [
    (kernel, heads, kv_heads, size)
    for kernel in (prompt_attention, hopper_attention)
    for heads, kv_heads, size in ((4, 2, 128), (3, 3, 64))
    if kernel.is_supported(torch.device(DEVICE), size)
]
"""Kernels that run here, and heads."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kernel", "heads", "kv_heads", "size"), LONG_PROMPTS)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (130, 130), (130, 301), (128, 256)])
def test_long_prompt(
    dtype: torch.dtype, heads: int, kv_heads: int, size: int, queries: int, keys: int, kernel: Any
) -> None:
    torch.manual_seed(0)
    q = normal(queries, 2 * heads, size, dtype=dtype)[:, ::2]
    k, v = (normal(keys, kv_heads, size, dtype=dtype) for _ in range(2))
    out = torch.empty(queries, heads, size, dtype=dtype, device=DEVICE)
    kernel.prompt_attention(q, k, v, out, size**-0.5)
    q, k, v = (x.float().cpu() for x in (q, k, v))
    close(out, reference_kernels.causal(q, k, v, size**-0.5))


_COMPILE_FOR_HOPPER = """
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from openai_bls_transformers.gpu import hopper_attention

kernel = hopper_attention._hopper_prompt_kernel
layout = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16)
signature = {name: "constexpr" for name in kernel.arg_names}
signature |= {"q_desc": f"tensordesc<fp16[64,64],{layout!r}>", "out_ptr": "*fp16"}
signature |= {name: f"tensordesc<fp16[128,64],{layout!r}>" for name in ("k_desc", "v_desc")}
signature |= {"queries": "i32", "length": "i32", "scale": "fp32"}
values = {"HEADS": 4, "SHARING": 2, "STAGES": 2, "COMPUTING": 240, "FETCHING": 24}
constants = {(kernel.arg_names.index(name),): value for name, value in values.items()}
source = GluonASTSource(kernel, signature, constants, {})
compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
print(compiled.asm["ptx"])
"""


def test_the_kernel_for_hopper_compiles() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(COMPILED)}
    command = [sys.executable, "-c", _COMPILE_FOR_HOPPER]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    # All products are of groups of warps, and there are registers for them.
    assert "wgmma.mma_async" in done.stdout
    assert "setmaxnreg.inc" in done.stdout


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [512, 96, 9000])
@pytest.mark.parametrize("biased", [True, False])
def test_products_of_a_vector(dtype: torch.dtype, size: int, biased: bool) -> None:
    torch.manual_seed(0)
    x, weight = normal(1, 1, size, dtype=dtype), normal(14, size, dtype=dtype) * size**-0.5
    bias = normal(14, dtype=dtype) if biased else None
    wanted = torch.nn.functional.linear(*(None if one is None else one.float().cpu() for one in (x, weight, bias)))
    close(vector_kernels.linear(x, weight, bias), wanted)
    gate, up = wanted.chunk(2, -1)
    close(vector_kernels.gated_linear(x, weight, bias), torch.nn.functional.silu(gate) * up)
    assert not vector_kernels.is_vector(normal(1, 2, size, dtype=dtype))


@pytest.mark.parametrize("size", [1024, 80])
@pytest.mark.parametrize("biased", [True, False])
def test_products_of_a_vector_with_fp8(size: int, biased: bool) -> None:
    torch.manual_seed(0)
    dtype = DTYPES[-1]
    x, bias = normal(1, 1, size, dtype=dtype), normal(14, dtype=dtype) if biased else None
    spread = torch.linspace(0.1, 20, 14, device=DEVICE).unsqueeze(1)  # a scale that is another row's shows
    weight, scale = fp8_numbers.quantize_weight(normal(14, size, dtype=torch.float32) * size**-0.5 * spread)
    wide = weight.float() * scale
    wanted = torch.nn.functional.linear(x.float(), wide, None if bias is None else bias.float())
    close(fp8_kernels.linear(x, weight, scale, bias), wanted)
    gate, up = wanted.to(dtype).float().chunk(2, -1)
    torch.testing.assert_close(
        fp8_kernels.gated_linear(x, weight, scale, bias).float(),
        torch.nn.functional.silu(gate) * up,
        rtol=0.02,
        atol=0.05,
    )


@pytest.mark.parametrize("size", [64, 5000])
def test_rows_in_fp8(size: int) -> None:
    torch.manual_seed(0)
    # Multiples of numbers in FP8 that need no rounding: the interpreter's loses the carry into the exponent.
    wanted = torch.randint(0, 0x7F, (4, size), dtype=torch.uint8, device=DEVICE).view(torch.float8_e4m3fn).float()
    wanted[:, 3] = -448
    wanted[3] = 0
    units = torch.tensor([[1.0], [0.25], [2.0**-6], [1.0]], device=DEVICE)
    x = torch.cat([wanted * units, wanted * units], 1).to(torch.float16)[:, :size]
    found, scale = fp8_kernels.quantize_rows(x)
    assert found.dtype == torch.float8_e4m3fn
    assert torch.equal(found.float(), wanted)
    assert torch.equal(scale[:3], units[:3])
    assert float(scale[3]) > 0


@pytest.mark.parametrize(
    ("sequences", "shares"), [(1, 64), (4, 32), (8, 16), (16, 8), (48, 8), (64, 4), (128, 2), (256, 1), (512, 1)]
)
def test_shares_of_the_keys_of_a_sequence(sequences: int, shares: int) -> None:
    assert attention_kernels._splits(4 * sequences, 132) == shares
