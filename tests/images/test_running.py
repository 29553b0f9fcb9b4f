"""Containers of the images: each may write nowhere, has no capabilities, and runs as a user that no image knows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from openai_bls.core.processes.machine import STUB_PROGRAM
from openai_bls.launcher.tritonserver.ports import Ports
from tests.images.containers import PATIENCE_S, USER, Container, Image, running
from tests.triton.conftest import ANSWERED
from tests.waiting import until

pytestmark = pytest.mark.images

READY = "Listening:"


def variables(ports: Ports) -> dict[str, str]:
    """The ports, as the server and the health check read them."""
    names = {"TRITON_HTTP": ports.http, "TRITON_GRPC": ports.grpc, "TRITON_METRICS": ports.metrics}
    return {f"OPENAI_BLS_{name}_PORT": str(port) for name, port in {**names, "HTTP": ports.openai}.items()}


def answer(ports: Ports) -> str:
    body = {"messages": ANSWERED.messages, "max_tokens": ANSWERED.tokens, "temperature": 0}
    response = httpx.post(f"http://127.0.0.1:{ports.openai}/v1/chat/completions", json=body, timeout=PATIENCE_S)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


def check_doors(ports: Ports) -> None:
    """Every endpoint of /v1, and of Triton's ports over HTTP and gRPC, answers."""
    host = "127.0.0.1"
    urls = ["--url", f"{host}:{ports.openai}", "--triton-url", f"http://{host}:{ports.http}"]
    urls += ["--grpc-url", f"{host}:{ports.grpc}", "--metrics-url", f"http://{host}:{ports.metrics}/metrics"]
    command = [sys.executable, "-m", "openai_bls", "smoke", "--json", *urls]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)["summary"]
    assert summary["ok"] > 20
    sys.stdout.write(f"smoke: {summary}\n")


def healthy(container: Container) -> None:
    done = container.health()
    assert (done.returncode, done.stderr) == (0, "")


def test_the_demo_serves_until_it_is_told_to_stop(cpu: Image, ports: Ports) -> None:
    with running(cpu, environment=variables(ports)) as container:
        container.read_until(READY)
        status = Path(f"/proc/{container.first}/status").read_text(encoding="utf-8")
        assert f"Uid:\t{USER}\t{USER}" in status
        assert f"CapEff:\t{0:016x}" in status
        assert answer(ports) == ANSWERED.answer
        check_doors(ports)
        healthy(container)
        assert container.stop() == 0
        assert "killing" not in container.output


def test_it_is_healthy_until_a_model_dies(cpu: Image, ports: Ports) -> None:
    with running(cpu, environment=variables(ports)) as container:
        container.read_until(READY)
        healthy(container)
        (stub,) = (
            pid
            for pid, command in container.processes()
            if command.partition(" ")[0].endswith(STUB_PROGRAM) and "/models/tensorrt_llm/" in command
        )
        os.kill(stub, signal.SIGKILL)
        until(lambda: container.health().returncode != 0, PATIENCE_S)
        done = container.health()
        assert done.returncode == 1
        assert "tensorrt_llm has died" in done.stdout
        assert done.stdout.count("\n") == 1


def test_the_servers_own_command_finds_the_engine(cpu: Image, ports: Ports) -> None:
    """As in `docker run IMAGE tritonserver --model-repository=model_repository`, with one of its models."""
    options = ["--model-repository=model_repository", "--allow-metrics=false", "--allow-grpc=false"]
    options += ["--model-control-mode=explicit", "--load-model=tensorrt_llm", f"--http-port={ports.http}"]
    with running(cpu, "tritonserver", *options, environment={"OPENAI_BLS_ENGINE": "null"}) as container:
        container.read_until("Started HTTPService")
        assert "successfully loaded 'tensorrt_llm'" in container.output
        # It is the server itself that gets the signal.
        assert container.stop() == 0


def test_the_engine_inside_serves_on_nvidias_entry_point(with_engine: Image, ports: Ports) -> None:
    manifest = json.loads(with_engine.at("/models/tensorrt_llm/1/engine.json").read_text(encoding="utf-8"))
    assert (manifest["model_name"], manifest["max_batch_size"]) == ("mine", 4)
    with running(with_engine, environment=variables(ports)) as container:
        container.read_until(READY)
        assert container.output.startswith("NVIDIA would speak here\n")
        check_doors(ports)
        healthy(container)
        assert container.stop() == 0


def test_without_an_engine_it_says_what_to_mount(runtime: Image) -> None:
    done = runtime.start(*runtime.config["Cmd"])
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no engine at /models ")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder that is mounted at /models, open to group 0 as docs/operations/docker.md says."""
    folder = tmp_path / "models"
    folder.mkdir()
    os.chown(folder, 1000, 0)
    folder.chmod(0o2775)
    return folder


def test_triton_and_the_engine_in_two_containers(
    runtime: Image, engine: Image, repository: Path, ports: Ports, tmp_path: Path
) -> None:
    """A builder fills the folder; the server waits for the engine, whose socket is in a volume of both."""
    builder = engine.start("build", "--engine", "null", volumes={"/models": repository})
    assert builder.returncode == 0, builder.stdout + builder.stderr
    socket = tmp_path / "socket"
    socket.mkdir()
    os.chown(socket, 1000, 0)
    socket.chmod(0o2770)
    volumes = {"/models": repository, "/run/openai_bls": socket}
    address = {"OPENAI_BLS_ENGINE_ADDRESS": "unix:/run/openai_bls/engine.sock"}
    with (
        running(runtime, volumes=volumes, environment={**variables(ports), **address}) as server,
        running(engine, volumes=volumes) as behind,
    ):
        server.read_until(READY)
        done = behind.health()
        assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")
        healthy(server)
        check_doors(ports)
        # With the interpreter of its base, not that of the library's environment.
        programs = [command.partition(" ")[0] for _, command in behind.processes()]
        assert {"python3", "/usr/bin/python3"} & {*programs}, programs
        assert server.stop() == 0
        assert behind.stop() == 0


@pytest.mark.parametrize("target", ["cpu", "runtime", "engine"])
def test_any_other_word_is_a_program(request: pytest.FixtureRequest, target: str) -> None:
    image: Image = request.getfixturevalue(target)
    done = image.start("bash", "-c", 'echo "$0 $PWD"; id -u; exit 3', "a b")
    assert done.returncode == 3
    assert done.stdout.endswith(f"a b {image.config['WorkingDir']}\n{USER}\n")
    assert image.start("servr").returncode == 127
    assert "openai_bls " in image.start("--version").stdout
