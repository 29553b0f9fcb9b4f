"""Products of a few rows against plain PyTorch: on a GPU, or elsewhere by Triton's interpreter (see conftest.py)."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from openai_bls_transformers import fp8_numbers
from openai_bls_transformers.gpu import few_rows_kernels, fp8_kernels

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPE = torch.bfloat16 if ON_GPU else torch.float16  # the interpreter multiplies bfloat16 wrongly


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=DTYPE, device=DEVICE)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found.float(), wanted.float(), rtol=0.02, atol=0.02)


def gated(wanted: torch.Tensor) -> torch.Tensor:
    gate, up = wanted.to(DTYPE).float().chunk(2, -1)
    return functional.silu(gate) * up


@pytest.mark.parametrize(("rows", "size"), [(2, 512), (9, 96), (16, 1300)])
@pytest.mark.parametrize("biased", [True, False])
def test_products(rows: int, size: int, biased: bool) -> None:
    torch.manual_seed(0)
    x, weight, bias = normal(1, rows, size), normal(70, size) * size**-0.5, normal(70) if biased else None
    wanted = functional.linear(x.float(), weight.float(), None if bias is None else bias.float())
    close(few_rows_kernels.linear(x, weight, bias), wanted)
    close(few_rows_kernels.gated_linear(x, weight, bias), gated(wanted))


@pytest.mark.parametrize("rows", [3, 16])
def test_products_with_fp8_round_no_row(rows: int) -> None:
    torch.manual_seed(0)
    size = 1040
    # Scales that are another row's or output's show, and so does a row rounded to FP8.
    x = normal(1, rows, size) * torch.logspace(-2, 1, rows, device=DEVICE, dtype=DTYPE).unsqueeze(1)
    spread = torch.linspace(0.1, 20, 34, device=DEVICE).unsqueeze(1)
    bias = normal(34)
    weight, scale = fp8_numbers.quantize_weight(torch.randn(34, size, device=DEVICE) * size**-0.5 * spread)
    wanted = functional.linear(x.float(), weight.float() * scale, bias.float())
    torch.testing.assert_close(fp8_kernels.linear(x, weight, scale, bias).float(), wanted, rtol=0.01, atol=0.01)
    torch.testing.assert_close(
        fp8_kernels.gated_linear(x, weight, scale, bias).float(), gated(wanted), rtol=0.02, atol=0.05
    )


def test_halves_are_exact() -> None:
    torch.manual_seed(0)
    x = normal(5, 700)
    x[1] *= 1e30 if ON_GPU else 100
    x[2] *= 1e-4
    x[3] = 0
    x[4, 5] = torch.finfo(DTYPE).max
    found, scale = few_rows_kernels.halves(x)
    assert found.dtype == torch.float16
    assert torch.isfinite(found).all()
    assert torch.equal(torch.frexp(scale).mantissa, torch.full_like(scale, 0.5))
    rows = slice(0, 4) if ON_GPU else slice(None)  # beside 3e38 the others vanish
    torch.testing.assert_close(found[rows].float() * scale[rows, None], x[rows].float(), rtol=0, atol=0)


def test_rows_that_are_taken() -> None:
    assert few_rows_kernels.takes(normal(1, 16, 8))
    assert few_rows_kernels.takes(normal(8))
    assert not few_rows_kernels.takes(normal(1, 17, 8))
    assert not few_rows_kernels.takes(normal(8, 4).T)
    assert not few_rows_kernels.takes(normal(1, 4, 8).float())
