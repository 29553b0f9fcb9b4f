"""compose.yaml against the Compose specification, and against the Dockerfile."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from openai_bls.launcher.tritonserver.process import _GRACE_SECONDS, DEFAULT_EXIT_TIMEOUT_SECONDS
from tests.paths import ROOT
from tests.unit.docker.text import read

COMPOSE: dict[str, Any] = YAML(typ="safe").load(ROOT / "compose.yaml")
SERVICES: dict[str, Any] = COMPOSE["services"]
FILE = read(ROOT / "Dockerfile")
STAGES = FILE.stages
SERVERS = ("openai_bls", "triton", "demo")


def words(stage: str, name: str) -> tuple[str, ...]:
    (command,) = (command for command in STAGES[stage].commands if command.cmd == name)
    return tuple(command.value)


def variables(stage: str) -> dict[str, str]:
    """The stage's own ENV."""
    pairs = [word for command in STAGES[stage].commands if command.cmd == "ENV" for word in command.value]
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def validate(path: Path) -> subprocess.CompletedProcess[str]:
    # The schema is inside the package.
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_is_valid_and_what_is_unknown_is_refused(tmp_path: Path) -> None:
    done = validate(ROOT / "compose.yaml")
    assert done.returncode == 0, done.stdout
    text = (ROOT / "compose.yaml").read_text()
    (tmp_path / "compose.yaml").write_text(text.replace("    shm_size:", "    shm-size:", 1))
    done = validate(tmp_path / "compose.yaml")
    assert done.returncode == 1
    assert "shm-size" in done.stdout


def test_each_service_has_a_profile_and_a_stage() -> None:
    """One without a profile would start in every profile, a GPU service on a laptop."""
    profiles = [service["profiles"] for service in SERVICES.values()]
    assert all(len(names) == 1 for names in profiles)
    ours = [service for service in SERVICES.values() if service["profiles"] != ["monitoring"]]
    assert [name for name, service in SERVICES.items() if service["profiles"] == ["vllm"]] == ["triton", "engine"]
    assert len({service["profiles"][0] for service in ours}) == len(ours) - 1
    for service in ours:
        assert service["build"]["target"] in STAGES
        stage = STAGES[service["build"]["target"]]
        own = {command.value[0].partition("=")[0] for command in stage.commands if command.cmd == "ARG"}
        assert service["build"].get("args", {}).keys() <= FILE.arguments.keys() | own
    tag = FILE.arguments["TRITON_TAG"]
    assert SERVICES["openai_bls"]["build"]["args"]["TRITON_TAG"] == f"${{TRITON_TAG:-{tag}}}"
    assert SERVICES["openai_bls"]["image"] == SERVICES["build-engine"]["image"] == f"openai_bls:${{TRITON_TAG:-{tag}}}"
    arguments = {"TRITON_TAG": f"${{TRITON_TAG:-{tag}}}", "TRITON_VARIANT": "py3"}
    assert SERVICES["triton"]["build"]["args"] == arguments
    assert SERVICES["triton"]["image"] == f"openai_bls:${{TRITON_TAG:-{tag}}}-py3"
    engine = f"${{ENGINE_IMAGE:-{FILE.arguments['ENGINE_IMAGE']}}}"
    assert SERVICES["engine"]["build"] == SERVICES["build-vllm"]["build"]
    assert SERVICES["engine"]["build"]["args"] == {"ENGINE_IMAGE": engine}


@pytest.mark.parametrize("name", SERVERS)
def test_servers_are_published_checked_and_stopped_as_in_the_image(name: str) -> None:
    service = SERVICES[name]
    stage = service["build"]["target"]
    assert sorted(port.rpartition(":")[2] for port in service["ports"]) == sorted(words(stage, "EXPOSE"))
    check = service["healthcheck"]
    (written,) = (command for command in STAGES[stage].commands if command.cmd == "HEALTHCHECK")
    assert tuple(check["test"]) == written.value
    options = {key.replace("_", "-"): value for key, value in check.items() if key != "test"}
    assert sorted(written.flags) == sorted(f"--{key}={value}" for key, value in options.items())
    match = re.fullmatch(r"(\d+)([sm])", service["stop_grace_period"])
    assert match is not None
    assert int(match[1]) * {"s": 1, "m": 60}[match[2]] > DEFAULT_EXIT_TIMEOUT_SECONDS + _GRACE_SECONDS


def test_gpus_are_reserved_where_an_engine_needs_them() -> None:
    for name in ("openai_bls", "build-engine", "engine", "build-vllm"):
        service = SERVICES[name]
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        assert service["ulimits"] == {"memlock": -1, "stack": 67108864}
        assert service["shm_size"] == "${SHM_SIZE:-2gb}"
    assert not {"deploy", "volumes", "runtime", "gpus"} & SERVICES["demo"].keys()
    assert not {"deploy", "runtime", "gpus"} & SERVICES["triton"].keys()
    # With NVIDIA's runtime as the default one a container has all GPUs, unless it says so.
    assert "NVIDIA_VISIBLE_DEVICES=void" in SERVICES["triton"]["environment"]


SSL = [f"OPENAI_BLS_SSL_{name}" for name in ("CERTFILE", "KEYFILE", "CA_CERTS")]


def test_the_server_reads_what_the_builder_writes() -> None:
    """The builder is the image's entrypoint with one word more. Secrets are passed on and not written down."""
    image = variables("runtime")
    folder, cache = image["OPENAI_BLS_MODEL_REPOSITORY"], image["HF_HOME"]
    server, builder = SERVICES["openai_bls"], SERVICES["build-engine"]
    assert builder["volumes"] == [f"repository:{folder}", f"huggingface:{cache}"]
    tls = "${TLS_DIR:-tls}:/etc/openai_bls/tls:ro"
    assert server["volumes"] == [f"repository:{folder}:ro", f"huggingface:{cache}", tls]
    assert COMPOSE["volumes"].keys() == {
        *("repository", "huggingface", "engine-socket", "tls", "prometheus", "grafana")
    }
    assert tuple(builder["entrypoint"]) == (*words("runtime", "ENTRYPOINT"), "build")
    assert (server["environment"], builder["environment"]) == (
        ["OPENAI_BLS_API_KEY", *SSL, "OPENAI_BLS_TRITON_HOST=0.0.0.0"],
        ["HF_TOKEN"],
    )


def test_triton_and_the_engine_share_a_socket_and_a_repository() -> None:
    server, engine, builder = (SERVICES[name] for name in ("triton", "engine", "build-vllm"))
    command = words("engine", "CMD")
    assert "command" not in engine
    socket = command[command.index("--socket") + 1]
    assert f"OPENAI_BLS_ENGINE_ADDRESS=unix:{socket}" in server["environment"]
    shared = [
        f"repository:{variables('engine')['OPENAI_BLS_MODEL_REPOSITORY']}:ro",
        f"engine-socket:{Path(socket).parent}",
    ]
    assert engine["volumes"] == shared
    assert set(shared) < set(server["volumes"])
    assert command[command.index("--model-dir") + 1] == "/models/tensorrt_llm/1"
    # Of both images, so that a new volume is the folder of neither of them alone.
    for stage in ("runtime", "engine"):
        runs = [command.original for command in STAGES[stage].commands if command.cmd == "RUN"]
        assert any(f"install -d -o 1000 -g 0 -m 2770 {Path(socket).parent}" in run for run in runs)
        assert words(stage, "USER") == ("1000:0",), "one user, or the socket's peer is refused"
    # What depends on another service is stopped before it.
    assert server["depends_on"] == ["engine"]
    assert tuple(builder["entrypoint"]) == (*words("engine", "ENTRYPOINT"), "build", "--engine", "vllm")
    assert builder["volumes"] == SERVICES["build-engine"]["volumes"]


@pytest.mark.parametrize("name", ["openai_bls", "triton", "demo"])
def test_tritons_ports_are_published_on_loopback(name: str) -> None:
    """They ask for no key."""
    service = SERVICES[name]
    assert "OPENAI_BLS_TRITON_HOST=0.0.0.0" in service["environment"], "published, but not open inside"
    assert [port.startswith("127.0.0.1:") for port in service["ports"]] == [False, True, True, True]


def test_monitoring_is_for_this_machine_alone() -> None:
    """Grafana asks for no log-in. Versions are pinned, and what is mounted is there."""
    for name in ("prometheus", "grafana"):
        service = SERVICES[name]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert re.fullmatch(r"[\w/]+:\$\{\w+_TAG:-v?\d+\.\d+\.\d+\}", service["image"])
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert (ROOT / source).is_dir() if source.startswith("./") else source in COMPOSE["volumes"]


def test_the_page_names_what_there_is() -> None:
    text = (ROOT / "docs" / "operations" / "docker.md").read_text("utf-8")
    profiles = {name for service in SERVICES.values() for name in service["profiles"]}
    commands = [command for stage in STAGES.values() for command in stage.commands if command.cmd == "ARG"]
    arguments = {word.partition("=")[0] for command in commands for word in command.value}
    for option, known in ((r"--target (\S+)", STAGES.keys()), (r"--profile ([\w-]+)", profiles)):
        named = set(re.findall(option, text))
        assert named
        assert named <= known
    assert set(re.findall(r"--build-arg (\w+)", text)) <= arguments
