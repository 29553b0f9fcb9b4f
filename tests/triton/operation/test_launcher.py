"""The launcher over the real tritonserver, with a model repository of one small model."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from openai_bls.commands.main import main
from openai_bls.core.processes.machine import SERVER_MARK
from openai_bls.launcher.checks import check_repository
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.readiness import get
from openai_bls.launcher.recovery.abandoned_stubs import awaited_children
from openai_bls.launcher.recovery.stub_watch import stubs
from openai_bls.launcher.testing import run_server
from openai_bls.launcher.tritonserver.command import NGC_SERVER, install_shim, is_executable
from openai_bls.launcher.tritonserver.ports import lease_ports
from openai_bls.triton_models.server.process import find_tritonserver
from tests.waiting import Spoken, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from openai_bls.launcher.tritonserver.ports import Ports

pytestmark = pytest.mark.triton

# Far beyond what any step takes: a test that waits this long has failed.
PATIENCE = 120.0

CONFIG = """
backend: "python"
max_batch_size: 0
input [{ name: "text" data_type: TYPE_STRING dims: [ 1 ] }]
output [{ name: "out" data_type: TYPE_STRING dims: [ 1 ] }]
instance_group [{ kind: KIND_CPU count: 1 }]
"""

# A text that begins with `wait:` names a folder: the model says there that it has begun, and goes
# on when it may.
MODEL = """
import pathlib
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text")
            word = text.as_numpy()[0].decode()
            if word.startswith("wait:"):
                folder = pathlib.Path(word[5:])
                (folder / "begun").touch()
                while not (folder / "go").exists():
                    time.sleep(0.02)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("out", text.as_numpy())]))
        return responses
"""

# Is paused in its first load, in the folder of the model.
PAUSED = """
import pathlib
import time


class TritonPythonModel:
    def initialize(self, args):
        folder = pathlib.Path(args["model_repository"])
        if not (folder / "paused").exists():
            (folder / "begun").touch()
            while not (folder / "paused").exists():
                time.sleep(0.02)

    def execute(self, requests):
        return []
"""

# The end of a server whose locks timed out in its first load.
STARVED = """
import os
import pathlib
import signal
import sys


class TritonPythonModel:
    def initialize(self, args):
        starts = pathlib.Path(args["model_repository"]) / "starts"
        with starts.open("a") as file:
            file.write("+")
        if starts.stat().st_size <= 2:
            words = "terminate called after throwing an instance of 'boost::interprocess::lock_exception'"
            print(words, file=sys.stderr, flush=True)
            os.kill(os.getppid(), signal.SIGABRT)

    def execute(self, requests):
        return []
"""

BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("the engine is made of cheese")
"""


def add_model(repository: Path, name: str, source: str) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(CONFIG)
    (version / "model.py").write_text(source)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    add_model(tmp_path / "models", "echo", MODEL)
    return tmp_path / "models"


def post(port: int, text: str, model: str = "echo") -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    body = json.dumps({"text": text})
    headers = {"content-type": "application/json"}
    connection.request("POST", f"/v2/models/{model}/generate", body, headers)
    return connection


def answer(connection: http.client.HTTPConnection) -> object:
    body = json.loads(connection.getresponse().read())
    connection.close()
    return body.get("out", body)


def processes_with(variable: str, value: str) -> list[int]:
    wanted, found = f"{variable}={value}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if wanted in environment.split(b"\0"):
                found.append(int(entry.name))
    return found


def regions(mark: str) -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"{mark}*")]


class Launcher(Spoken):
    """`python -m openai_bls serve` in a process of its own, on free ports."""

    def __init__(self, repository: Path, ports: Ports, *extra: str) -> None:
        self.ports = ports
        # Inherited by everything below the launcher, so that whatever is left can be found.
        self.tag = f"{os.getpid()}-{ports.http}"
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "openai_bls", "serve"),
                *("--model-repository", str(repository)),
                *("--http-port", str(ports.http), "--grpc-port", str(ports.grpc)),
                *("--metrics-port", str(ports.metrics), "--openai-port", str(ports.openai)),
                *extra,
            ],
            env={**os.environ, "LAUNCHER_TEST_TAG": self.tag},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        super().__init__(process)

    def family(self) -> list[int]:
        return processes_with("LAUNCHER_TEST_TAG", self.tag)

    def tritonserver(self) -> int:
        server = find_tritonserver(self.ports.grpc)
        assert server is not None
        return server

    def mark(self) -> str:
        for pid in self.family():
            for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                name, _, value = entry.decode().partition("=")
                if name == SERVER_MARK:
                    return value
        raise AssertionError("no server process")


@pytest.fixture
def start(repository: Path) -> Iterator[Callable[..., Launcher]]:
    launchers: list[Launcher] = []
    with lease_ports() as leased:

        def begin(*extra: str) -> Launcher:
            launchers.append(Launcher(repository, leased, *extra))
            return launchers[-1]

        yield begin
        for launcher in launchers:
            for pid in launcher.family():
                os.kill(pid, signal.SIGKILL)
            launcher.process.wait()
            if launcher.process.stdout is not None:
                launcher.process.stdout.close()


def test_run_server_leaves_nothing_of_a_repository_behind_a_link(repository: Path, tmp_path: Path) -> None:
    awkward = tmp_path / "my model's é"
    repository.rename(awkward)
    with pytest.raises(LaunchError, match="space"):
        check_repository(awkward)
    repository.symlink_to(awkward)
    check_repository(repository)
    with run_server(repository) as server:
        assert answer(post(server.ports.http, "linked")) == "linked"
        assert get("127.0.0.1", server.ports.metrics, "/metrics") is not None
        mark = server.process.mark
        assert len(server.process.leftovers()) >= 3, "guardian, server and stub"
        assert regions(mark)
    assert server.process.leftovers() == []
    assert regions(mark) == []
    assert server.process.poll() == 0


@pytest.mark.skipif(is_executable(NGC_SERVER), reason="the image has its own tritonserver command")
def test_the_plain_command_from_another_folder(repository: Path, tmp_path: Path) -> None:
    install_shim()
    elsewhere = tmp_path / "elsewhere"
    # A folder of the package's name, as a model repository has, must not be taken for the package.
    (elsewhere / "openai_bls").mkdir(parents=True)
    bin_folder = str(Path(sys.executable).parent)
    with lease_ports() as ports, (tmp_path / "log").open("wb") as log:
        tag = f"{os.getpid()}-{ports.http}"
        server = subprocess.Popen(
            [
                "tritonserver",
                f"--model-repository={repository}",
                *("--http-port", str(ports.http), "--grpc-port", str(ports.grpc)),
                f"--metrics-port={ports.metrics}",
            ],
            cwd=elsewhere,
            env={**os.environ, "PATH": bin_folder + os.pathsep + os.environ["PATH"], "LAUNCHER_TEST_TAG": tag},
            stdout=log,
            stderr=log,
        )
        try:
            until(lambda: server.poll() is not None or get("127.0.0.1", ports.http, "/v2/health/ready") is not None)
            assert server.poll() is None, (tmp_path / "log").read_text()
            assert answer(post(ports.http, "shim")) == "shim"
            assert '"thread-pool-size":"256"' in (tmp_path / "log").read_text()
            # The exit code is tritonserver's own affair here; it crashed once in 110 such stops.
            server.terminate()
            server.wait(PATIENCE)
        finally:
            server.kill()
            server.wait()
            for pid in processes_with("LAUNCHER_TEST_TAG", tag):
                os.kill(pid, signal.SIGKILL)


def shared_memory_is_closed(ports: Ports) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", ports.http)
    connection.request("GET", "/v2/systemsharedmemory/status")
    assert connection.getresponse().status == 403
    connection.close()
    with InferenceServerClient(f"127.0.0.1:{ports.grpc}") as client:
        with pytest.raises(InferenceServerException, match="restricted"):
            client.register_system_shared_memory("region", "/dev/shm/region", 64)
        assert client.is_server_ready()


def test_serve_drains_on_ctrl_c(start: Callable[..., Launcher], tmp_path: Path) -> None:
    launcher = start()
    launcher.read_until(r"Listening: .*\n")
    mark = launcher.mark()
    shared_memory_is_closed(launcher.ports)
    connection = post(launcher.ports.http, f"wait:{tmp_path}")
    until((tmp_path / "begun").exists)
    launcher.process.send_signal(signal.SIGINT)
    launcher.read_until("stopping")
    (tmp_path / "go").touch()
    assert answer(connection) == f"wait:{tmp_path}"
    assert launcher.finish() == 0
    assert "loaded echo" in launcher.output
    assert "/v1" not in launcher.output, "there is no openai_bls model here"
    assert launcher.family() == []
    assert regions(mark) == []


def test_serve_kills_on_the_second_signal(start: Callable[..., Launcher], tmp_path: Path) -> None:
    launcher = start("--exit-timeout", "3000")
    launcher.read_until(r"Listening: .*\n")
    mark = launcher.mark()
    connection = post(launcher.ports.http, f"wait:{tmp_path}")
    until((tmp_path / "begun").exists)
    launcher.process.send_signal(signal.SIGTERM)
    launcher.read_until("stopping")
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.finish() == 128 + signal.SIGKILL
    connection.close()
    assert launcher.family() == []
    assert regions(mark) == []


def test_killed_guardian_takes_the_server_along(start: Callable[..., Launcher]) -> None:
    launcher = start("--restarts", "0")
    launcher.read_until(r"Listening: .*\n")
    guardians = [pid for pid in launcher.family() if b"guardian.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(guardians[0], signal.SIGKILL)
    assert launcher.finish() != 0
    assert launcher.family() == []


def test_serve_says_in_one_line_why_a_model_did_not_load(start: Callable[..., Launcher], repository: Path) -> None:
    add_model(repository, "broken", BROKEN)
    launcher = start()
    assert launcher.finish() == 1
    errors = [line for line in launcher.output.splitlines() if "error:" in line]
    assert len(errors) == 1
    expected = "openai-bls serve: error: model broken failed to load: ValueError: the engine is made of"
    assert errors[0].startswith(expected)
    assert len(launcher.output.splitlines()) < 10
    assert launcher.family() == []


def model_control_needs_its_key(ports: Ports, capsys: pytest.CaptureFixture[str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", ports.http)
    connection.request("POST", "/v2/repository/models/other/unload")
    assert connection.getresponse().status == 403
    connection.close()
    with (
        InferenceServerClient(f"127.0.0.1:{ports.grpc}") as client,
        pytest.raises(InferenceServerException, match="restricted"),
    ):
        client.load_model("other")
    assert main(["reload", "--grpc-port", str(ports.grpc), "other"]) == 0
    assert "other is loaded again (" in capsys.readouterr().out


def test_serve_restarts_what_dies(
    start: Callable[..., Launcher], repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model under requests of another one, which goes on, then the server, until there is no restart left."""
    add_model(repository, "other", MODEL)
    launcher = start("--restarts", "1")
    launcher.read_until(r"Listening: .*\n")
    ports, server = launcher.ports, launcher.tritonserver()
    running = post(ports.http, f"wait:{tmp_path}")
    until((tmp_path / "begun").exists)
    model_control_needs_its_key(ports, capsys)
    (dead,) = stubs(server)["other"]
    os.kill(dead.pid, signal.SIGKILL)
    launcher.read_until(r"other has died; loading it again\n(.*\n)*.* other is loaded again \(")
    assert answer(post(ports.http, "hello", "other")) == "hello"
    (tmp_path / "go").touch()
    assert answer(running) == f"wait:{tmp_path}"
    assert launcher.tritonserver() == server
    (dead,) = stubs(server)["other"]
    os.kill(dead.pid, signal.SIGKILL)
    launcher.read_until("other has died; it is left alone after too many restarts")
    os.kill(server, signal.SIGKILL)
    launcher.read_until(r"starting the server again\n(.*\n)*.*Listening: .*\n")
    assert answer(post(ports.http, "again", "other")) == "again"
    os.kill(launcher.tritonserver(), signal.SIGKILL)
    assert launcher.finish() == 128 + signal.SIGKILL
    assert "no further restart: that was the last one within 10 minutes (--restarts)" in launcher.output
    assert launcher.family() == []


def test_serve_starts_again_after_loads_without_cpu_time(start: Callable[..., Launcher], repository: Path) -> None:
    """They are not restarts of those that there may be."""
    add_model(repository, "starved", STARVED)
    launcher = start("--restarts", "1")
    again = r"ended with exit code 134.*\n(.*\n)*.*starting the server again\n(.*\n)*"
    launcher.read_until(again + ".*" + again + r".*Listening: .*\n")


def test_serve_starts_again_when_the_server_gives_up_a_process_that_lives(
    start: Callable[..., Launcher], repository: Path
) -> None:
    """A process that is not given a second of CPU time while it loads: the server would wait for its end for ever."""
    add_model(repository, "paused", PAUSED)
    launcher = start()
    until((repository / "paused" / "begun").exists)
    server = launcher.tritonserver()
    (stub,) = stubs(server)["paused"]
    os.kill(stub.pid, signal.SIGSTOP)
    until(lambda: stub.pid in awaited_children(server))
    os.kill(stub.pid, signal.SIGCONT)
    (repository / "paused" / "paused").touch()
    launcher.read_until(
        r"tritonserver has given up paused.*\n(.*\n)*.*starting the server again\n(.*\n)*.*Listening: .*\n"
    )
    assert launcher.tritonserver() != server
