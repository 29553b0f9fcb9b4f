"""Doctor: every check of the machine, the environment and the model repository, whatever the others say."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec

from openai_bls import __version__
from openai_bls.core.manifest import MANIFEST_NAME
from openai_bls.engines.tensorrt_llm.nvidia_smi import visible_gpus
from openai_bls.launcher import checks
from openai_bls.launcher.console import Console
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.tritonserver.command import Server, find_server
from openai_bls.launcher.tritonserver.ports import Ports
from openai_bls.launcher.workspace import is_own


class Finding(msgspec.Struct, frozen=True):
    """Outcome of one check."""

    name: str
    status: Literal["ok", "note", "failed"]
    """`note`: it works, and could be better."""
    detail: str


class Report(msgspec.Struct, frozen=True):
    """The document of `doctor --json`."""

    openai_bls: str
    python: str
    executable: str
    model_repository: str
    checks: list[Finding]
    failed: int
    """Number of the checks that failed."""


class TorchBuild(msgspec.Struct, frozen=True):
    """PyTorch as it is installed."""

    version: str
    cuda: str = ""
    """Version of CUDA that it was built with; empty is none."""
    hip: str = ""
    """Version of ROCm, likewise."""


def doctor(console: Console, report: Report, *, as_json: bool = False) -> int:
    """Print a report; 1 if a check failed, else 0."""
    if as_json:
        console.line(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        labels = {"ok": "ok  ", "note": "note", "failed": "FAIL"}
        for finding in report.checks:
            console.line(f"{labels[finding.status]}  {finding.detail}")
        console.line("all is well" if not report.failed else f"{report.failed} failed")
    return 1 if report.failed else 0


def examine(repository: Path, ports: Ports, host: str, triton_host: str = "") -> Report:
    """Make all checks.

    Args:
        repository: the model repository.
        ports: ports that a server would take.
        host: address of /v1.
        triton_host: address of Triton's own ports; empty is that of /v1.
    """
    found = [
        _finding("platform", checks.check_platform),
        _finding("shared memory", checks.check_shm),
        _finding("open files", checks.check_open_files),
    ]
    servers: list[Server] = []
    found.append(_finding("server", lambda: _server(servers)))
    for server in servers:
        found.append(_finding("python", lambda server=server: checks.check_python(server)))  # type: ignore[misc]
        found.append(_finding("numpy", lambda server=server: checks.check_numpy(server)))  # type: ignore[misc]
    found += [
        torch_finding(installed_torch(), [gpu.name for gpu in visible_gpus()]),
        *_repository(repository),
        _finding("ports", lambda: checks.check_ports(ports, host, triton_host)),
        _finding("certificate", lambda: checks.check_tls(ports, repository)),
    ]
    shown = [finding for finding in found if finding.detail]
    return Report(
        openai_bls=__version__,
        python=platform.python_version(),
        executable=sys.executable,
        model_repository=str(repository),
        checks=shown,
        failed=sum(finding.status == "failed" for finding in shown),
    )


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
        return Finding("torch", "note", "no torch: the embedded engine needs it (pip install 'openai_bls[engine]')")
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


def _repository(repository: Path) -> list[Finding]:
    engine = repository / checks.ENGINE_MODEL / "1" / MANIFEST_NAME
    if is_own(repository) and not engine.is_file() and not checks.engine_address(repository):
        note = f"there is no engine in {repository} yet: `openai-bls serve` makes one, --model says of what"
        return [Finding("engine", "note", note)]
    return [
        _finding("model repository", lambda: checks.check_repository(repository)),
        _finding("engine", lambda: checks.check_engine(repository)),
    ]


def _server(found: list[Server]) -> str:
    server = find_server()
    found.append(server)
    return f"tritonserver ({server.version}) from {server.binary}"


def _finding(name: str, check: Callable[[], str | None]) -> Finding:
    try:
        return Finding(name, "ok", check() or "")
    except LaunchError as error:
        return Finding(name, "failed", str(error))
