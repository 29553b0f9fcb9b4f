from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from openai_bls.core.processes.identity import process_identity
from openai_bls.pipeline.metrics import directory as metrics_directory


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where directories are made; what the environment held before comes back."""
    monkeypatch.setattr(metrics_directory, "_SHARED_MEMORY", tmp_path)
    for name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        monkeypatch.setenv(name, "/another/program")
    return tmp_path


def test_one_directory_per_server_for_its_user_alone(folder: Path) -> None:
    directory = metrics_directory.share(os.getpid())
    assert directory == metrics_directory.share(os.getpid())
    assert directory is not None
    assert directory.parent == folder
    assert directory.stat().st_mode & 0o777 == 0o700
    assert os.environ["PROMETHEUS_MULTIPROC_DIR"] == str(directory)
    assert "prometheus_multiproc_dir" not in os.environ
    assert metrics_directory.share(os.getppid()) != directory


def test_directories_of_servers_that_have_ended_are_removed(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server:
        directory = metrics_directory.share(server.pid)
        assert directory is not None
        (directory / "counter_1.db").touch()
        # Another container's, whose processes are not seen from here.
        other = folder / directory.name.replace(str(process_identity(server.pid)[0]), "1")
        other.mkdir()
        metrics_directory.share(os.getpid())
        assert directory.exists()
        server.communicate(b"\n")
    metrics_directory.share(os.getpid())
    assert not directory.exists()
    assert other.exists()


def test_without_shared_memory_it_is_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_directory, "_SHARED_MEMORY", tmp_path / "none")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    directory = metrics_directory.share(os.getpid())
    assert directory is not None
    assert directory.parent == tmp_path


@pytest.mark.parametrize("taken", ["open", "link", "file"])
def test_a_directory_that_is_not_this_users_alone_is_not_used(
    folder: Path, taken: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = metrics_directory.share(os.getpid())
    assert directory is not None
    directory.rmdir()
    if taken == "open":
        directory.mkdir()
        directory.chmod(0o755)
    elif taken == "link":
        (folder / "elsewhere").mkdir(mode=0o700)
        directory.symlink_to(folder / "elsewhere")
    else:
        directory.touch()
    assert metrics_directory.share(os.getpid()) is None
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ
    assert "will not show the other instances" in caplog.text


def test_a_zombie_has_ended(tmp_path: Path) -> None:
    """The stub of an instance that was killed is one until its model has been unloaded."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    for pid in (child.pid, os.getpid()):
        (tmp_path / f"gauge_livesum_{pid}.db").touch()
    assert metrics_directory.ended_instances(str(tmp_path)) == {child.pid}
    child.wait()
    assert metrics_directory.ended_instances(str(tmp_path)) == {child.pid}
