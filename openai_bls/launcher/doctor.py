"""Doctor: all checks of the machine, the environment and the model repository, none of which stops another."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from openai_bls import __version__
from openai_bls.core.manifest import MANIFEST_NAME, EngineLoadError
from openai_bls.engines import registry
from openai_bls.engines.plugin import Finding
from openai_bls.launcher import checks
from openai_bls.launcher.console import Console
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.readiness import get
from openai_bls.launcher.tritonserver.command import Server, find_server
from openai_bls.launcher.tritonserver.ports import Ports
from openai_bls.launcher.variables import unknown_variables
from openai_bls.launcher.workspace import is_own

_LITTLE_DISK_BYTES = 2 * 10**9
_NO_DISK_BYTES = 50 * 10**6
_LITTLE_MEMORY_BYTES = 2 * 10**9
_CGROUP = Path("/sys/fs/cgroup")


class Report(msgspec.Struct, frozen=True):
    """The document of `doctor --json`."""

    openai_bls: str
    python: str
    executable: str
    model_repository: str
    checks: list[Finding]
    failed: int
    """Number of the checks that failed."""


def doctor(console: Console, report: Report, *, as_json: bool = False) -> int:
    """Print a report; 1 if a check failed, else 0."""
    if as_json:
        console.line(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        labels = {"ok": "ok  ", "note": "note", "failed": "FAIL"}
        for finding in report.checks:
            console.line(f"{labels[finding.status]}  {finding.detail}")
        console.line(_verdict(report))
    return 1 if report.failed else 0


def _verdict(report: Report) -> str:
    """The last line: what is full or missing is no failure, and not well either."""
    notes = sum(finding.status == "note" for finding in report.checks)
    said = f"{notes} to look at" if notes else ""
    if report.failed:
        return f"{report.failed} failed" + (f", {said}" if said else "")
    return f"nothing failed; {said}" if said else "all is well"


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
        disk_finding(repository),
        memory_finding(available_memory()),
        *(Finding("environment", "note", said) for said in unknown_variables(os.environ)),
    ]
    servers: list[Server] = []
    found.append(_finding("server", lambda: _server(servers)))
    for server in servers:
        found.append(_finding("python", lambda server=server: checks.check_python(server)))  # type: ignore[misc]
        found.append(_finding("numpy", lambda server=server: checks.check_numpy(server)))  # type: ignore[misc]
    found += [
        *_engine_findings(),
        *_repository(repository),
        _ports(ports, host, triton_host),
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


def _engine_findings() -> list[Finding]:
    """Findings of the installed engines about this machine; a plug-in that cannot be imported is one, too."""
    found: list[Finding] = []
    for name in registry.names():
        try:
            findings = registry.plugin(name).findings
            found += [] if findings is None else findings()()
        except EngineLoadError as error:
            found.append(Finding(f"engine {name}", "failed", str(error)))
    return found


def disk_finding(repository: Path) -> Finding:
    """Disk for an engine: that of the repository, or of the folder that it would be made in."""
    folder = next(path for path in (repository.absolute(), *repository.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    text = f"{free / 1e9:.1f} GB free on the disk of {folder}"
    if free < _NO_DISK_BYTES:
        return Finding("disk", "failed", f"{text}: a build and the logs of a server have no room")
    if free < _LITTLE_DISK_BYTES:
        return Finding("disk", "note", f"{text}: an engine takes as much again as its checkpoint, unless both share it")
    return Finding("disk", "ok", text)


def available_memory() -> int | None:
    """Bytes of memory that programs may still take, within the limit of this container; None if nobody says."""
    found = []
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):
        # cgroup v2; "max" is no number.
        limit, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        found.append(max(0, limit - used))
    return min(found, default=None)


def memory_finding(available: int | None) -> Finding:
    """Memory for a server: without an engine its models take about a gigabyte."""
    if available is None:
        return Finding("memory", "ok", "")
    text = f"{available / 1e9:.1f} GB of memory available"
    if available < _LITTLE_MEMORY_BYTES:
        return Finding("memory", "note", f"{text}: the models take about 1 GB, and the engine its weights besides")
    return Finding("memory", "ok", text)


def _ports(ports: Ports, host: str, triton_host: str) -> Finding:
    """Ports that are free, or on which a server of ours runs."""
    try:
        taken = checks.taken_ports(ports, host, triton_host)
    except LaunchError as error:
        return Finding("ports", "failed", str(error))
    if taken and ports.openai in taken:
        said = running_release(host, ports)
        if said:
            named = ", ".join(map(str, taken))
            return Finding("ports", "note", f"openai_bls {said} runs here already, on the ports {named}")
    return _finding("ports", lambda: checks.check_ports(ports, host, triton_host))


def running_release(host: str, ports: Ports) -> str:
    """Release of the openai_bls whose /v1 listens on this machine; empty if it is another program."""
    for tls in (False, True):
        body = get(host, ports.openai, "/version", tls=tls)
        with suppress(ValueError, LookupError, TypeError):
            found = json.loads(body or b"")
            # Other servers of OpenAI's API have a version, too.
            return str(found["version"]) if found["engine"] else ""
    return ""


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
