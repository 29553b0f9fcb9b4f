"""What the doctor says of PyTorch."""

from __future__ import annotations

import pytest

from openai_bls_transformers.torch_build import TorchBuild, installed_torch, torch_finding


@pytest.mark.parametrize(
    ("torch", "gpus", "status", "said"),
    [
        (TorchBuild("2.13.0+cpu"), [], "ok", "built for CPUs"),
        (TorchBuild("2.13.0", cuda="13.0"), ["H100"], "ok", "built for CUDA 13.0"),
        (TorchBuild("2.13.0", cuda="13.0"), [], "note", "--index-url INDEX torch==2.13.0`"),
        (TorchBuild("2.13.0+cpu"), ["H100"], "note", "`pip install --force-reinstall torch==2.13.0`"),
        (TorchBuild("2.13.0+rocm7.2", hip="7.2"), [], "ok", "built for ROCm 7.2"),
        (None, [], "note", "-e engines/transformers"),
    ],
)
def test_torch(torch: TorchBuild | None, gpus: list[str], status: str, said: str) -> None:
    found = torch_finding(torch, gpus)
    assert found.status == status
    assert said in found.detail


def test_the_installed_torch() -> None:
    torch = pytest.importorskip("torch")
    found = installed_torch()
    assert found is not None
    assert found.version == torch.__version__
    assert found.cuda == (torch.version.cuda or "")
