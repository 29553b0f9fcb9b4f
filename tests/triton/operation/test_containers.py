"""Triton and its engine as two containers: processes, mounts and IPC of their own, and a socket in a volume of both."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from openai_bls.launcher import checks, workspace
from openai_bls.launcher.tritonserver.ports import Ports, lease_ports
from tests.triton.conversations import HELLO
from tests.waiting import Spoken, until

pytestmark = pytest.mark.triton

PATIENCE = 300.0
SOCKET = "/run/openai_bls/engine/engine.sock"
TOKENS = 5

# The volume is mounted where the images have it. What comes in the shell's place is process 1 of its container.
MOUNT = 'mount -t tmpfs tmpfs /run && mkdir /run/openai_bls && mount --bind "$0" /run/openai_bls && exec "$@"'


def isolated(*more: str) -> list[str]:
    """Command that runs another in namespaces of its own."""
    who = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *who, "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc", *more]


def possible() -> bool:
    """Whether this machine lets its user make namespaces."""
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run(
        [*isolated("--net"), "mount", "-t", "tmpfs", "tmpfs", "/run"], capture_output=True, check=False
    )
    return done.returncode == 0


class Container(Spoken):
    """A command of `openai-bls` in namespaces of its own.

    Args:
        volume: a folder that is mounted at /run/openai_bls.
        options: of unshare.
        words: the command.
        environment: added to this process's own.
    """

    def __init__(self, volume: Path, options: list[str], words: list[str], **environment: str) -> None:
        command = [*isolated(*options), "sh", "-c", MOUNT, str(volume), sys.executable, "-m", "openai_bls", *words]
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        super().__init__(process, PATIENCE)

    @property
    def first(self) -> int:
        """Process id, outside, of the container's process 1."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    @property
    def namespaces(self) -> set[str]:
        """Names of its own mounts, processes, IPC and network."""
        return {str(Path(f"/proc/{self.first}/ns/{kind}").readlink()) for kind in ("mnt", "pid", "ipc", "net")}

    def stop(self) -> int:
        """As `docker stop`; returns the exit status."""
        os.kill(self.first, signal.SIGTERM)
        return self.finish()

    def kill(self) -> None:
        """As a container that is gone: its process 1 is killed, and with it all the others."""
        with contextlib.suppress(OSError, IndexError):
            os.kill(self.first, signal.SIGKILL)
        self.process.communicate(timeout=PATIENCE)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """As a new volume in Kubernetes: open to every user."""
    folder = tmp_path / "volume"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture
def triton_repository(repository: Path, tmp_path: Path) -> Path:
    """What Triton's side needs: this release's models and the tokenizer, without engine.json or weights."""
    made = tmp_path / "model_repository"
    workspace.update(made, print)
    for model in checks.TOKENIZER_MODELS:
        shutil.copytree(repository / model / "1" / "tokenizer", made / model / "1" / "tokenizer")
    return made


@contextmanager
def engine(repository: Path, volume: Path) -> Iterator[Container]:
    """The engine's container, without any network."""
    # What it answers does not matter, and this one starts at once.
    words = ["engine", "--model-dir", str(repository / "tensorrt_llm" / "1"), "--socket", SOCKET]
    words += ["--option", "engine=null"]
    running = Container(volume, ["--net"], words, OMP_NUM_THREADS="1")
    try:
        yield running
    finally:
        running.kill()


@contextmanager
def triton(repository: Path, volume: Path, ports: Ports) -> Iterator[Container]:
    """Triton's container, on this machine's network."""
    words = ["serve", "--model-repository", str(repository), "--verbose"]
    for name in ("http", "grpc", "metrics", "openai"):
        words += [f"--{name}-port", str(getattr(ports, name))]
    running = Container(volume, [], words, OPENAI_BLS_ENGINE_ADDRESS=f"unix:{SOCKET}")
    try:
        yield running
    finally:
        running.kill()


def ask(ports: Ports) -> httpx.Response:
    body = {"messages": HELLO, "max_tokens": TOKENS}
    return httpx.post(f"http://127.0.0.1:{ports.openai}/v1/chat/completions", json=body, timeout=PATIENCE)


def answered(ports: Ports) -> int:
    """Tokens of an answer."""
    response = ask(ports)
    assert response.status_code == 200, response.text
    tokens: int = response.json()["usage"]["completion_tokens"]
    return tokens


def health(ports: Ports) -> int:
    return httpx.get(f"http://127.0.0.1:{ports.openai}/health", timeout=PATIENCE).status_code


def status(volume: Path) -> subprocess.CompletedProcess[str]:
    """What the health check of the engine's container says, asked through the volume."""
    words = ["engine", "--status", "--socket", str(volume / Path(SOCKET).relative_to("/run/openai_bls"))]
    return subprocess.run([sys.executable, "-m", "openai_bls", *words], capture_output=True, text=True, check=False)


@pytest.mark.skipif(not possible(), reason="this machine lets its user make no namespaces")
def test_two_containers(repository: Path, triton_repository: Path, volume: Path) -> None:
    """The server comes first and waits; the engine's container is killed, comes back, and is stopped."""
    with lease_ports() as ports, triton(triton_repository, volume, ports) as server:
        with engine(repository, volume) as first:
            server.read_until("Listening:")
            assert answered(ports) == TOKENS
            assert (status(volume).returncode, status(volume).stdout) == (0, "ready\n")
            # A process of the one is none to the other, whose credentials have its user all the same.
            assert first.namespaces.isdisjoint(server.namespaces)
            # The folder of the socket is the engine's alone, though the volume is everybody's.
            assert (volume / "engine").stat().st_mode & 0o777 == 0o700
            first.kill()
        until(lambda: health(ports) == 503, PATIENCE)
        assert ask(ports).status_code >= 500
        assert (status(volume).returncode, status(volume).stderr) == (1, "")
        assert server.process.poll() is None
        with engine(repository, volume) as second:
            until(lambda: health(ports) == 200, PATIENCE)
            assert answered(ports) == TOKENS
            assert second.stop() == 0
        until(lambda: health(ports) == 503, PATIENCE)
        assert server.stop() == 0
