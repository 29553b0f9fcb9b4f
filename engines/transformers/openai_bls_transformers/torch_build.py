"""Build of PyTorch in this environment, for `openai-bls doctor`; PyTorch is not imported."""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata
from pathlib import Path

import msgspec

from openai_bls.core import installing
from openai_bls.core.machine.nvidia_smi import visible_gpus
from openai_bls.engines.plugin import Finding


class TorchBuild(msgspec.Struct, frozen=True):
    """PyTorch as it is installed."""

    version: str
    cuda: str = ""
    """Version of CUDA that it was built with; empty is none."""
    hip: str = ""
    """Version of ROCm, likewise."""


def findings() -> list[Finding]:
    """The finding about PyTorch."""
    return [torch_finding(installed_torch(), [gpu.name for gpu in visible_gpus()])]


def installed_torch() -> TorchBuild | None:
    """The PyTorch of this environment, which is not imported; None if there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        version = metadata.version("torch")
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except (OSError, metadata.PackageNotFoundError):
        return None
    built = dict(re.findall(r"^(cuda|hip)\b[^=]*= *'([^']*)'", text, re.MULTILINE))
    return TorchBuild(version, built.get("cuda", ""), built.get("hip", ""))


def torch_finding(torch: TorchBuild | None, gpus: list[str]) -> Finding:
    """Build of PyTorch: the one that is there, whether it suits the machine, and how to get the other one."""
    if torch is None:
        return Finding(
            "torch", "note", f"no torch, which the embedded engine needs: {installing.with_engine('transformers')}"
        )
    wanted = f"torch=={torch.version.partition('+')[0]}"
    if torch.hip:
        return Finding("torch", "ok", f"torch {torch.version}, built for ROCm {torch.hip}")
    if torch.cuda and not gpus:
        return Finding(
            "torch",
            "note",
            f"torch {torch.version} is built for CUDA {torch.cuda}, and there is no GPU here: the build for CPUs does"
            f" the same with gigabytes less on disk (`uv pip install --torch-backend cpu --reinstall-package torch"
            f" {wanted}`, or `pip install --force-reinstall --no-deps --index-url INDEX {wanted}`, where INDEX is the"
            " index of builds for CPUs that PyTorch's installation page names; the packages nvidia-* can go then)",
        )
    if gpus and not torch.cuda:
        return Finding(
            "torch",
            "note",
            f"torch {torch.version} is built for CPUs, and there is a GPU here ({gpus[0]}): the embedded engine does"
            f" not use it until there is a build with CUDA (`pip install --force-reinstall {wanted}`)",
        )
    return Finding("torch", "ok", f"torch {torch.version}, built for {f'CUDA {torch.cuda}' if torch.cuda else 'CPUs'}")
