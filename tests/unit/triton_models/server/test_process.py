from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from openai_bls.triton_models.server.process import (
    NoGrpcError,
    command_line,
    control_headers,
    find_tritonserver,
    front_ends,
    grpc_address,
    http_address,
    listening_ports,
)

_PROGRAM = """
import socket
with socket.socket({family}) as s:
    s.bind(({host!r}, 0))
    port = s.getsockname()[1]
    for step in (lambda: None, s.listen, s.close):
        step()
        print(port, flush=True)
        input()
"""


def _follow(family: str, host: str) -> list[set[int]]:
    """Its ports before, while and after it listens, where its own is 1."""
    seen = []
    program = _PROGRAM.format(family=family, host=host)
    with subprocess.Popen(
        [sys.executable, "-ISc", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(3):
            own = int(process.stdout.readline())
            seen.append({1 if port == own else port for port in listening_ports(process.pid)})
            process.stdin.write(b"\n")
    return seen


def test_a_process_listens_from_listen_to_close() -> None:
    assert _follow("socket.AF_INET", "127.0.0.1") == [set(), {1}, set()]


def test_a_process_that_does_not_exist() -> None:
    assert listening_ports(2**22 + 1) == set()
    assert front_ends(2**22 + 1) == {}


@contextmanager
def _program(
    tmp_path: Path, *arguments: str, name: str = "tritonserver", script: str = "echo; read line"
) -> Iterator[int]:
    """A process of that name with these arguments; yields its id once it runs."""
    link = tmp_path / name
    link.symlink_to("/bin/sh")
    with subprocess.Popen(
        [str(link), "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.read(1)
        yield process.pid
        process.stdin.write(b"\n")


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        ([], "127.0.0.1:8001"),
        (["--grpc-port=1234"], "127.0.0.1:1234"),
        (["--grpc-port", "1234", "--allow-grpc", "true"], "127.0.0.1:1234"),
        (["--grpc-port=1", "--grpc-port=2"], "127.0.0.1:2"),
        (["--grpc-address=10.1.2.3"], "10.1.2.3:8001"),
        (["--grpc-address", "::1"], "[::1]:8001"),
        (["--grpc-address=[::]", "--grpc-use-ssl=false"], "127.0.0.1:8001"),
        (["--http-port=7", "--strict-readiness"], "127.0.0.1:8001"),
    ],
)
def test_where_the_grpc_front_end_is(tmp_path: Path, arguments: list[str], address: str) -> None:
    with _program(tmp_path, *arguments) as pid:
        assert grpc_address(pid) == address


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        ([], ("127.0.0.1", 8000)),
        (["--http-port", "8123", "--http-address", "0.0.0.0", "--allow-http=true"], ("127.0.0.1", 8123)),
        (["--http-address=10.0.0.1"], ("10.0.0.1", 8000)),
        (["--allow-http", "False", "--http-port", "1"], None),
        (["--http-port=x"], None),
    ],
)
def test_where_the_http_front_end_is(tmp_path: Path, arguments: list[str], address: tuple[str, int] | None) -> None:
    with _program(tmp_path, *arguments) as pid:
        assert http_address(pid) == address


@pytest.mark.parametrize(
    ("arguments", "ports"),
    [
        ([], {"grpc": 8001, "http": 8000, "metrics": 8002}),
        (["--http-port=1", "--grpc-port", "2", "--metrics-port=3"], {"grpc": 2, "http": 1, "metrics": 3}),
        (["--allow-http=false", "--allow-metrics", "0", "--grpc-port=x"], {}),
    ],
)
def test_the_front_ends_that_are_asked_for(tmp_path: Path, arguments: list[str], ports: dict[str, int]) -> None:
    with _program(tmp_path, *arguments) as pid:
        assert front_ends(pid) == ports


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--allow-grpc=false"], "--allow-grpc=false"),
        (["--allow-grpc", "0"], "--allow-grpc=false"),
        (["--grpc-use-ssl=true"], "TLS"),
        (["--grpc-use-ssl", "--log-info=1"], "TLS"),
        (["--grpc-port=x"], "'x'"),
    ],
)
def test_a_grpc_front_end_that_cannot_be_used(tmp_path: Path, arguments: list[str], why: str) -> None:
    with _program(tmp_path, *arguments) as pid, pytest.raises(NoGrpcError, match=why):
        grpc_address(pid)


def test_another_program_has_no_command_line_of_tritonservers(tmp_path: Path) -> None:
    with _program(tmp_path, name="python") as pid:
        assert command_line(pid) is None
    for other in (os.getpid(), 2**22 + 1):
        assert command_line(other) is None
        assert http_address(other) is None
        with pytest.raises(NoGrpcError, match="tritonserver"):
            grpc_address(other)


def test_options_with_and_without_values(tmp_path: Path) -> None:
    with _program(tmp_path, "--a", "--b=1=2", "--c", "3", "--d=", "--e") as pid:
        options = command_line(pid)
    assert options is not None
    found = {name: value for name, value in options.items() if len(name) == 3}
    assert found == {"--a": "true", "--b": "1=2", "--c": "3", "--d": "", "--e": "true"}


def test_a_stub_that_is_being_started_is_no_server(tmp_path: Path) -> None:
    with _program(tmp_path, "--grpc-port=1", script="(echo; read line); :") as pid:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert [command_line(int(child)) for child in children] == [{"--grpc-port": "1"}]
        assert find_tritonserver(1) == pid


def test_the_key_of_model_control(tmp_path: Path) -> None:
    arguments = [
        *("--http-restricted-api=shared-memory:a=b", "--http-restricted-api", "health,model-repository:key=x=y"),
        *("--grpc-restricted-protocol=model-repository:admin=z", "--grpc-port=1"),
    ]
    with _program(tmp_path, *arguments) as pid:
        assert control_headers(pid, "http") == {"key": "x=y"}
        assert control_headers(pid, "grpc") == {"triton-grpc-protocol-admin": "z"}
        assert find_tritonserver(1) == pid
        assert find_tritonserver(2) is None
    assert find_tritonserver(1) is None
    assert control_headers(os.getpid(), "http") == {}
