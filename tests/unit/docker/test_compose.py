"""compose.yaml against the Compose specification, and against the Dockerfile."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from openai_bls.launcher.process import _GRACE_SECONDS, DEFAULT_EXIT_TIMEOUT_SECONDS
from tests.unit.docker.replay import read

ROOT = Path(__file__).resolve().parents[3]
COMPOSE: dict[str, Any] = YAML(typ="safe").load(ROOT / "compose.yaml")
SERVICES: dict[str, Any] = COMPOSE["services"]
STAGES = read(ROOT / "Dockerfile").stages
SERVERS = ("openai_bls", "demo")


def environment(stage: str) -> dict[str, str]:
    """ENV of a stage."""
    words = [word for command in STAGES[stage].commands if command.cmd == "ENV" for word in command.value]
    return dict(zip(words[::2], words[1::2], strict=True))


def words(stage: str, name: str) -> tuple[str, ...]:
    (command,) = (command for command in STAGES[stage].commands if command.cmd == name)
    return tuple(command.value)


def seconds(text: str) -> int:
    match = re.fullmatch(r"(\d+)([smh])", text)
    assert match is not None
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def validate(path: Path) -> subprocess.CompletedProcess[str]:
    # The schema is inside the package.
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_is_valid() -> None:
    done = validate(ROOT / "compose.yaml")
    assert done.returncode == 0, done.stdout


def test_the_schema_refuses_what_is_unknown(tmp_path: Path) -> None:
    text = (ROOT / "compose.yaml").read_text()
    (tmp_path / "compose.yaml").write_text(text.replace("    shm_size:", "    shm-size:", 1))
    done = validate(tmp_path / "compose.yaml")
    assert done.returncode == 1
    assert "shm-size" in done.stdout


def test_each_service_has_a_profile_of_its_own() -> None:
    """One without a profile would start in every profile, a GPU service on a laptop."""
    profiles = [service["profiles"] for service in SERVICES.values()]
    assert all(len(names) == 1 for names in profiles)
    assert len({name for (name,) in profiles}) == len(profiles)


@pytest.mark.parametrize("name", SERVICES)
def test_images_come_from_stages_of_the_dockerfile(name: str) -> None:
    build = SERVICES[name]["build"]
    assert build["target"] in STAGES
    assert build.get("args", {}).keys() <= read(ROOT / "Dockerfile").arguments.keys()


def test_the_same_tag_unless_told_otherwise() -> None:
    tag = read(ROOT / "Dockerfile").arguments["TRITON_TAG"]
    assert SERVICES["openai_bls"]["build"]["args"]["TRITON_TAG"] == f"${{TRITON_TAG:-{tag}}}"
    assert SERVICES["openai_bls"]["image"] == SERVICES["build-engine"]["image"] == f"openai_bls:${{TRITON_TAG:-{tag}}}"


@pytest.mark.parametrize("name", SERVERS)
def test_every_port_of_the_image_is_published(name: str) -> None:
    service = SERVICES[name]
    inside = [port.rpartition(":")[2] for port in service["ports"]]
    assert sorted(inside) == sorted(words(service["build"]["target"], "EXPOSE"))


@pytest.mark.parametrize("name", SERVERS)
def test_health_is_checked_as_in_the_image(name: str) -> None:
    service = SERVICES[name]
    check = service["healthcheck"]
    (written,) = (command for command in STAGES[service["build"]["target"]].commands if command.cmd == "HEALTHCHECK")
    assert tuple(check["test"]) == written.value
    options = {key.replace("_", "-"): value for key, value in check.items() if key != "test"}
    assert sorted(written.flags) == sorted(f"--{key}={value}" for key, value in options.items())


@pytest.mark.parametrize("name", SERVERS)
def test_a_stop_waits_longer_than_the_server_drains(name: str) -> None:
    assert seconds(SERVICES[name]["stop_grace_period"]) > DEFAULT_EXIT_TIMEOUT_SECONDS + _GRACE_SECONDS


@pytest.mark.parametrize("name", ["openai_bls", "build-engine"])
def test_gpus_are_reserved(name: str) -> None:
    service = SERVICES[name]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert service["ulimits"] == {"memlock": -1, "stack": 67108864}
    assert service["shm_size"] == "${SHM_SIZE:-2gb}"


def test_the_demo_needs_no_gpu_and_no_volume() -> None:
    assert not {"deploy", "volumes", "runtime", "gpus"} & SERVICES["demo"].keys()


def test_the_server_reads_what_the_builder_writes() -> None:
    server, builder = (dict.fromkeys(SERVICES[name]["volumes"]) for name in ("openai_bls", "build-engine"))
    image = environment("runtime")
    place, cache = image["OPENAI_BLS_MODEL_REPOSITORY"], image["HF_HOME"]
    assert list(builder) == [f"repository:{place}", f"huggingface:{cache}"]
    assert list(server) == [f"repository:{place}:ro", f"huggingface:{cache}"]
    assert COMPOSE["volumes"].keys() == {"repository", "huggingface"}


def test_the_builder_is_the_images_entrypoint_with_one_word_more() -> None:
    assert tuple(SERVICES["build-engine"]["entrypoint"]) == (*words("runtime", "ENTRYPOINT"), "build")


def test_secrets_are_passed_on_and_not_written_down() -> None:
    assert SERVICES["openai_bls"]["environment"] == ["OPENAI_BLS_API_KEY"]
    assert SERVICES["build-engine"]["environment"] == ["HF_TOKEN"]


def test_the_page_names_what_there_is() -> None:
    text = (ROOT / "docs" / "docker.md").read_text()
    assert set(re.findall(r"--target (\S+)", text)) <= STAGES.keys()
    profiles = {name for service in SERVICES.values() for name in service["profiles"]}
    named = set(re.findall(r"--profile ([\w-]+)", text))
    assert named
    assert named <= profiles
    arguments = {
        word.partition("=")[0]
        for stage in STAGES.values()
        for c in stage.commands
        if c.cmd == "ARG"
        for word in c.value
    }
    assert set(re.findall(r"--build-arg (\w+)", text)) <= arguments
