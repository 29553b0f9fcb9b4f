from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import cpu


def _stat(pid: int, name: str, parent: int, user: int, system: int) -> str:
    return f"{pid} ({name}) S {parent} 1 1 0 -1 4194560 100 0 0 0 {user} {system} 900 900 20 0 4 0 100 1000 10\n"


def _process(
    proc: Path, pid: int, name: str, parent: int, ticks: tuple[int, int] = (0, 0), command: tuple[str, ...] = ()
) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(_stat(pid, name, parent, *ticks))
    (folder / "cmdline").write_bytes(b"\0".join(part.encode() for part in command) + b"\0")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A launcher, a tritonserver with two stubs, one with a child, and a stranger."""
    _process(tmp_path, 10, "python", 1)
    _process(tmp_path, 20, "tritonserver", 10, (100, 50))
    _process(tmp_path, 21, "triton_python_b", 20, (10, 0), ("stub", "repository/openai_bls/1/model.py", "shm"))
    _process(tmp_path, 22, "triton_python_b", 20, (20, 0), ("stub", "repository/tensorrt_llm/1/model.py", "shm"))
    _process(tmp_path, 23, "a (b) c", 22, (1, 2))
    _process(tmp_path, 30, "stranger", 1, (999, 999))
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:2328 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 777 1 0\n"
        "   1: 0100007F:2329 0100007F:2328 01 00000000:00000000 00:00000000 00000000     0        0 778 1 0\n"
    )
    (tmp_path / "21" / "fd" / "5").symlink_to("socket:[777]")
    (tmp_path / "30" / "fd" / "5").symlink_to("socket:[778]")
    return tmp_path


def test_names_may_hold_parentheses_and_spaces() -> None:
    assert cpu.parse_stat(_stat(5, "a) S (b", 3, 7, 8)) == cpu.Stat("a) S (b", 3, 15)


def test_the_tree_is_summed_by_name(proc: Path) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    before = cpu.sample_tree(20, proc)
    _process(proc, 20, "tritonserver", 10, (100 + tick, 50 + tick))
    _process(proc, 23, "a (b) c", 22, (1, 2 + tick))
    (proc / "21" / "stat").unlink()
    _process(proc, 24, "late", 20, (0, tick // 2))
    assert cpu.sample_tree(20, proc).since(before) == {
        "tritonserver": 2.0,
        "a (b) c": 1.0,
        "late": 0.5,
        "tensorrt_llm": 0.0,
    }


def test_stubs_are_named_by_their_model(proc: Path) -> None:
    assert set(cpu.sample_tree(20, proc).names.values()) == {"tritonserver", "openai_bls", "tensorrt_llm", "a (b) c"}


def test_a_process_that_has_gone_is_an_empty_tree(proc: Path) -> None:
    assert cpu.sample_tree(99, proc).seconds == {}


def test_the_server_is_found_through_its_stubs_port(proc: Path) -> None:
    assert cpu.find_server(9000, proc) == 20
    assert cpu.find_server(9001, proc) is None
    # Without a tritonserver above it, the listener itself.
    (proc / "21" / "stat").write_text(_stat(21, "uvicorn", 1, 0, 0))
    assert cpu.find_server(9000, proc) == 21


def test_a_real_listener_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert cpu.find_server(listener.getsockname()[1]) == os.getpid()


def test_a_real_child_uses_cpu_time() -> None:
    script = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    before = cpu.sample_tree(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    used = sum(cpu.sample_tree(os.getpid()).since(before).values())
    child.communicate(b"\n")
    assert used >= 0.15


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("x.org", False),
    ],
)
def test_local(host: str, local: bool) -> None:
    assert cpu.is_local(host) is local


def test_what_the_whole_machine_uses(tmp_path: Path) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text(f"cpu  {tick} 0 {tick} 9999 77 0 {tick} 0 0 0\ncpu0 1 2 3\n")
    assert cpu.machine_seconds(tmp_path) == 3.0
    assert cpu.machine_seconds() > 0
