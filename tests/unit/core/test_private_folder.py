"""Private folder of a server's processes: one for all of them, and no other user's, whatever is in its place."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.processes import private_folder
from openai_bls.core.processes.identity import process_identity
from openai_bls.core.processes.private_folder import PrivateFolderError

WAIT_S = 60.0
_LOCATE = "import os, sys; from openai_bls.core.processes import private_folder as p; print(p.locate(int(sys.argv[1])))"


@pytest.fixture(autouse=True)
def parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Where folders are made: the first choice and the second."""
    first, second = tmp_path / "shm", tmp_path / "tmp"
    for parent in (first, second):
        parent.mkdir()
    monkeypatch.setattr(private_folder, "SHARED_MEMORY", first)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(second))
    return first, second


def test_all_processes_of_a_server_find_one_folder() -> None:
    """At the same moment, without asking each other."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server:
        command = [sys.executable, "-c", _LOCATE, str(server.pid)]
        started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        found = {process.communicate()[0].strip() for process in started}
        server.communicate(b"\n")
    assert len(found) == 1
    folder = Path(found.pop())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == os.geteuid()
    folder.rmdir()


def test_threads_that_come_at_once_share_it(parents: tuple[Path, Path]) -> None:
    together = threading.Barrier(8, timeout=WAIT_S)

    def find(_: int) -> Path:
        together.wait()
        return private_folder.locate(os.getpid())

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(find, range(8)))) == 1
    assert len(list(parents[0].iterdir())) == 1


def test_without_the_first_choice_it_is_the_second_and_stays_there(parents: tuple[Path, Path]) -> None:
    first, second = parents
    first.rmdir()
    found = private_folder.locate(os.getpid())
    assert found.parent == second
    # A model that comes later, when there is room again.
    first.mkdir()
    assert private_folder.locate(os.getpid()) == found
    assert private_folder.locate(os.getppid()).parent == first


def test_with_neither_it_is_an_error(parents: tuple[Path, Path]) -> None:
    for parent in parents:
        parent.rmdir()
    with pytest.raises(PrivateFolderError):
        private_folder.locate(os.getpid())


@pytest.mark.parametrize("taken", ["open", "link", "file", "foreign"])
def test_what_is_not_this_users_alone_is_never_used(
    parents: tuple[Path, Path], taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = private_folder.locate(os.getpid())
    folder.rmdir()
    if taken == "open":
        folder.mkdir()
        folder.chmod(0o750)
    elif taken == "link":
        (parents[1] / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(parents[1] / "elsewhere")
    elif taken == "file":
        folder.touch()
    else:
        folder.mkdir(mode=0o700)
        monkeypatch.setattr(os, "fstat", _of_another_user)
    with pytest.raises(PrivateFolderError):
        private_folder.locate(os.getpid())
    with pytest.raises(PrivateFolderError):
        private_folder.open_checked(folder)
    assert os.path.lexists(folder)


_fstat = os.fstat


def _of_another_user(descriptor: int) -> os.stat_result:
    mode, *_ = _fstat(descriptor)
    return os.stat_result((mode, 1, 1, 1, os.geteuid() + 1, 0, 0, 0, 0, 0))


def test_a_lock_is_one_processes_at_a_time_and_outlives_the_folders_removal() -> None:
    folder = private_folder.locate(os.getpid())
    entered = threading.Event()

    def enter() -> None:
        with private_folder.locked(folder):
            assert folder.exists()
            entered.set()

    with private_folder.locked(folder):
        with pytest.raises(BlockingIOError), private_folder.locked(folder, wait=False):
            pass
        thread = threading.Thread(target=enter)
        thread.start()
        private_folder.remove_if_empty(folder)
        assert not entered.is_set()
    assert entered.wait(WAIT_S)
    thread.join()


def test_a_folder_that_others_remove_all_the_time_can_be_had() -> None:
    folder = private_folder.locate(os.getpid())
    ended = threading.Event()

    def remove() -> None:
        while not ended.is_set():
            private_folder.remove_if_empty(folder)

    thread = threading.Thread(target=remove)
    thread.start()
    for _ in range(300):
        with private_folder.locked(folder):
            pass
        assert private_folder.locate(os.getpid()) == folder
    ended.set()
    thread.join()


def test_folders_of_servers_that_have_ended_are_removed(parents: tuple[Path, Path]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server:
        folder = private_folder.locate(server.pid)
        (folder / "left").touch()
        namespace = str(process_identity(server.pid)[0])
        # Another container's, whose processes are not seen from here; and what only looks like one.
        other = parents[0] / folder.name.replace(namespace, "1")
        link = parents[0] / f"{folder.name}x"
        other.mkdir()
        link.symlink_to(parents[1])
        private_folder.locate(os.getpid())
        assert folder.exists()
        server.communicate(b"\n")
    private_folder.locate(os.getppid())
    assert not folder.exists()
    assert other.exists()
    assert link.is_symlink()
    assert parents[1].exists()


@given(st.text(st.sampled_from("0123456789-xa"), max_size=40))
def test_any_name_beside_them_is_harmless(name: str) -> None:
    begin = f"p-{os.geteuid()}-{process_identity(os.getpid())[0]}-"
    parent = Path(private_folder.SHARED_MEMORY)
    (parent / (begin + name)).touch()
    private_folder.remove_stale(parent, "p-")
    assert (parent / (begin + name)).exists()
