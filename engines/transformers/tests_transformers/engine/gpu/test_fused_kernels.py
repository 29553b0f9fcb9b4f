"""Kernels of fused operations against plain PyTorch: on a GPU, or elsewhere by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from openai_bls.engines.not_finite import NOT_FINITE
from openai_bls_transformers.gpu import fused_kernels, token_kernels
from tests_transformers.engine.gpu.test_attention_kernels import DEVICE, DTYPES, close, normal


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_kernels(dtype: torch.dtype) -> None:
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm, apply_rotary_pos_emb

    torch.manual_seed(0)
    norm = Qwen2RMSNorm(96, eps=1e-6).to(DEVICE, dtype)
    torch.nn.init.normal_(norm.weight)
    x = normal(1, 5, 192, dtype=dtype)
    with torch.no_grad():
        close(fused_kernels.rms_norm(x[..., :96], norm.weight, 1e-6), norm(x[..., :96]))
        total, normed = fused_kernels.add_rms_norm(x[..., :96], x[..., 96:], norm.weight, 1e-6)
        assert torch.equal(total, x[..., :96] + x[..., 96:])
        close(normed, norm(total))
    close(fused_kernels.silu_mul(x), torch.nn.functional.silu(x[..., :96]) * x[..., 96:])
    close(fused_kernels.gelu_mul(x), torch.nn.functional.gelu(x[..., :96], approximate="tanh") * x[..., 96:])
    q, k = (normal(1, 5, heads, 64, dtype=dtype).transpose(1, 2) for heads in (7, 2))
    cos, sin = (normal(1, 5, 64, dtype=dtype) for _ in range(2))
    rotated = apply_rotary_pos_emb(q, k, cos, sin)
    for found, wanted in zip(fused_kernels.rotary(q, k, cos, sin), rotated, strict=True):
        close(found, wanted)
    # The second cache takes numbers that the interpreter need not round.
    narrow = normal(1, 2, 5, 64, dtype=torch.float32).to(torch.float8_e4m3fn).to(dtype)
    turns, stays = (cos[0], sin[0]), (torch.ones_like(cos[0]), torch.zeros_like(sin[0]))
    slots = torch.tensor([3, 8, 0, 4, 5], device=DEVICE)
    for kind, angles, keys, wanted in ((dtype, turns, k, rotated[1]), (torch.float8_e4m3fn, stays, narrow, narrow)):
        key_cache, value_cache = (torch.zeros(9, 2, 64, device=DEVICE).to(kind) for _ in range(2))
        queries, new_keys, new_values = (x[0].transpose(0, 1) for x in (q, keys, narrow))
        found = fused_kernels.rotary_to_cache(queries, new_keys, new_values, angles, key_cache, value_cache, slots)
        close(found, (rotated[0] if angles is turns else q)[0].transpose(0, 1))
        for cache, written in ((key_cache, wanted), (value_cache, narrow)):
            close(cache.float()[slots], written[0].transpose(0, 1))
            assert not cache.float()[[1, 2, 6, 7]].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_of_gemma(dtype: torch.dtype) -> None:
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm

    torch.manual_seed(0)
    norms = [Gemma3RMSNorm(96, eps=1e-6).to(DEVICE, dtype) for _ in range(2)]
    for norm in norms:
        torch.nn.init.normal_(norm.weight)
    heads = normal(1, 5, 400, dtype=dtype)[..., 10:394].view(1, 5, 4, 96)
    x, residual = (normal(1, 5, 96, dtype=dtype) for _ in range(2))
    with torch.no_grad():
        close(fused_kernels.rms_norm(heads, norms[0].weight, 1e-6, "offset"), norms[0](heads))
        total, normed = fused_kernels.add_rms_norm(x, residual, norms[0].weight, 1e-6, "offset", norms[1].weight)
        close(total, residual + norms[1](x))
        close(normed, norms[0](total))


@pytest.mark.parametrize("form", ["early", "late"])
def test_where_a_norm_is_rounded(form: fused_kernels.NormForm) -> None:
    torch.manual_seed(0)
    x, weight = normal(1, 50, 96, dtype=torch.float16), normal(96, dtype=torch.float16)
    scaled = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    wanted = {"early": weight * scaled.to(x.dtype), "late": (weight.float() * scaled).to(x.dtype)}
    equal = {
        name: float((fused_kernels.rms_norm(x, weight, 1e-6, form) == one).float().mean())
        for name, one in wanted.items()
    }
    assert equal[form] > 0.99
    assert min(equal.values()) < 0.9


@pytest.mark.parametrize("dtype", DTYPES)
def test_angles(dtype: torch.dtype) -> None:
    positions = torch.tensor([[0, 1, 17, 4095, 40000]], dtype=torch.int32, device=DEVICE)
    frequencies = 1e6 ** -(torch.arange(0, 80, 2, device=DEVICE) / 80)
    wanted = (positions.unsqueeze(-1) * frequencies).repeat(1, 1, 2)
    cos, sin = fused_kernels.angles(positions, frequencies, 1.2, dtype)
    close(cos, wanted.cos() * 1.2)
    close(sin, wanted.sin() * 1.2)


def test_carried_tokens() -> None:
    ids, previous = (torch.arange(a, a + 700, dtype=torch.int32, device=DEVICE) for a in (0, 1000))
    previous[9] = NOT_FINITE
    rows = torch.full((800,), -1, dtype=torch.int32, device=DEVICE)
    rows[3], rows[4], rows[599], rows[600] = 5, 9, 0, 7
    token_kernels.carry_over(ids[None, :600], rows, previous)
    wanted = torch.arange(700)
    wanted[3], wanted[4], wanted[599] = 1005, 0, 1000
    assert ids.tolist() == wanted.tolist()


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_argmax(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 64 shares, in as many as there are blocks, and in shares of several blocks."""
    monkeypatch.setattr(token_kernels, "_ARGMAX_PROGRAMS", {1: 64, 3: 8, 40: 80}[rows])
    torch.manual_seed(0)
    x = normal(rows, 5000, dtype=torch.float16)
    for row in range(rows):
        x[row, [100 * row + 7, 100 * row + 8, 4999]] = 9  # the first of three
    x[0, 4000] = torch.nan
    if rows > 2:
        x[1, 4000], x[2, :] = torch.inf, -torch.inf
    out = torch.full((rows + 1,), -1, dtype=torch.int32, device=DEVICE)
    counters = torch.zeros(rows, dtype=torch.int32, device=DEVICE)
    for _ in range(2):
        token_kernels.argmax(x, out, counters)
    spoiled = 3 if rows > 2 else 1
    assert out.tolist() == [NOT_FINITE] * spoiled + [*(100 * row + 7 for row in range(spoiled, rows)), -1]
    assert not counters.any()
