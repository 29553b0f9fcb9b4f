"""What the doctor says of ports, disk, memory, variables, and a repository that nobody has made yet."""

from __future__ import annotations

import contextlib
import io
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.engines.plugin import Finding
from openai_bls.launcher import doctor
from openai_bls.launcher.console import Console
from openai_bls.launcher.doctor import Report, examine
from openai_bls.launcher.tritonserver.ports import Ports, lease_ports
from openai_bls.launcher.variables import unknown_variables


def test_ports_of_a_server_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is told from a stranger on the same ports, all of which are named."""
    with lease_ports() as ports, contextlib.ExitStack() as listening:
        for port in (ports.http, ports.openai):
            taken = listening.enter_context(socket.socket())
            taken.bind(("127.0.0.1", port))
            taken.listen()
        answers = {"/version": b'{"version": "0.1.0", "engine": "transformers"}'}
        for ours in (True, False):
            monkeypatch.setattr(
                doctor, "get", lambda _host, _port, path, tls, ours=ours: answers[path] if ours else b"<"
            )
            (found,) = (one for one in examine(tmp_path, ports, "127.0.0.1").checks if one.name == "ports")
            assert found.status == ("note" if ours else "failed")
            assert ("openai_bls 0.1.0 runs here already" in found.detail) == ours
            assert str(ports.http) in found.detail
            assert str(ports.openai) in found.detail


def test_disk_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(tmp_path) in doctor.disk_finding(tmp_path / "not" / "yet").detail
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    assert doctor.disk_finding(tmp_path).status == "note"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**6))
    assert doctor.disk_finding(tmp_path).status == "failed"
    monkeypatch.setattr(doctor, "_CGROUP", tmp_path)
    free = doctor.available_memory()
    assert free is not None
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert doctor.available_memory() == 2000
    assert [doctor.memory_finding(size).status for size in (2000, 1 << 40)] == ["note", "ok"]


@given(st.lists(st.sampled_from(["ok", "note", "failed"]), max_size=6))
def test_all_is_well_only_if_it_is(found: list[Literal["ok", "note", "failed"]]) -> None:
    checks = [Finding("check", status, "said") for status in found]
    report = Report("0", "3", "python", "models", checks, found.count("failed"))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = doctor.doctor(Console(), report)
    assert status == bool(found.count("failed"))
    assert (out.getvalue().splitlines()[-1] == "all is well") == (set(found) <= {"ok"})


def test_a_variable_that_nothing_reads() -> None:
    environ = {
        "OPENAI_BLS_API_KEYS": "k",
        "OPENAI_BLS_ENGINE_MAX_BATCHSIZE": "8",
        # Of a mistake like none, of Kubernetes for a service of this name, and of ours.
        **{"OPENAI_BLS_QQQQ": "", "OPENAI_BLS_PORT_9000_TCP_ADDR": "", "OPENAI_BLS_HTTP_PORT": "", "HOME": ""},
    }
    assert unknown_variables(environ) == [
        "nothing reads the variable OPENAI_BLS_API_KEYS: did you mean OPENAI_BLS_API_KEY?",
        "nothing reads the variable OPENAI_BLS_ENGINE_MAX_BATCHSIZE: did you mean OPENAI_BLS_ENGINE_MAX_BATCH_SIZE?",
        "nothing reads the variable OPENAI_BLS_QQQQ",
    ]


def test_a_repository_that_serve_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    own = tmp_path / "openai_bls" / "model_repository"
    found = {finding.name: finding for finding in examine(own, Ports(), "127.0.0.1").checks}
    assert (found["engine"].status, "model repository" in found) == ("note", False)
    assert "`openai-bls serve` makes one" in found["engine"].detail
    found = {finding.name: finding for finding in examine(tmp_path / "other", Ports(), "127.0.0.1").checks}
    assert found["model repository"].status == "failed"
