"""What the doctor says of PyTorch and of a repository that nobody has made yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_bls.launcher.doctor import TorchBuild, examine, installed_torch, torch_finding
from openai_bls.launcher.tritonserver.ports import Ports


@pytest.mark.parametrize(
    ("torch", "gpus", "status", "said"),
    [
        (TorchBuild("2.13.0+cpu"), [], "ok", "built for CPUs"),
        (TorchBuild("2.13.0", cuda="13.0"), ["H100"], "ok", "built for CUDA 13.0"),
        (TorchBuild("2.13.0", cuda="13.0"), [], "note", "--index-url INDEX torch==2.13.0`"),
        (TorchBuild("2.13.0+cpu"), ["H100"], "note", "`pip install --force-reinstall torch==2.13.0`"),
        (TorchBuild("2.13.0+rocm7.2", hip="7.2"), [], "ok", "built for ROCm 7.2"),
        (None, [], "note", "'openai_bls[engine]'"),
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


def test_a_repository_that_serve_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    own = tmp_path / "openai_bls" / "model_repository"
    found = {finding.name: finding for finding in examine(own, Ports(), "127.0.0.1").checks}
    assert (found["engine"].status, "model repository" in found) == ("note", False)
    assert "`openai-bls serve` makes one" in found["engine"].detail
    found = {finding.name: finding for finding in examine(tmp_path / "other", Ports(), "127.0.0.1").checks}
    assert found["model repository"].status == "failed"
