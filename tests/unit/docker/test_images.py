"""The images, replayed: what the RUN and COPY instructions leave behind, and what the image's own commands do there."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from openai_bls.commands.table import COMMANDS
from openai_bls.core.processes.machine import STUB_PROGRAM
from openai_bls.launcher.tritonserver.ports import lease_ports
from tests.unit.docker.conftest import NVIDIA, ROOT, Index
from tests.unit.docker.replay import Image, Replay, is_root
from tests.waiting import lines_until

IMAGES = ("cpu", "runtime")
SBOM = "io.openai-bls.sbom"
MODELS = {"ensemble", "openai_bls", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls"}


@pytest.fixture(params=IMAGES)
def image(request: pytest.FixtureRequest) -> Image:
    """Each of the two."""
    made: Image = request.getfixturevalue(request.param)
    return made


def start(image: Image, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The image's start program with `arguments` instead of its CMD, without NVIDIA's script before it."""
    words = image.metadata["ENTRYPOINT"]
    python = next(index for index, word in enumerate(words) if word.rpartition("/")[2] == "python3")
    command = [image.mapped(word) for word in words[python:]]
    return subprocess.run(
        [*command, *arguments],
        cwd=image.at("."),
        env=image.process_environment(environment),
        capture_output=True,
        text=True,
        check=False,
    )


def python(image: Image, code: str, interpreter: str = "python3") -> str:
    """What `code` prints in one of the image's Pythons."""
    return subprocess.run(
        [interpreter, "-c", code],
        cwd=image.at("."),
        env=image.process_environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def packages(image: Image, interpreter: str = "python3") -> dict[str, str]:
    """Packages of one of the image's environments, and their versions."""
    code = "from importlib.metadata import *; print({d.metadata['Name']: d.version for d in distributions()})"
    found = ast.literal_eval(python(image, code, interpreter))
    return {normalised(name): version for name, version in found.items()}


def label(image: Image, name: str) -> str:
    labels = dict(zip(image.metadata["LABEL"][::2], image.metadata["LABEL"][1::2], strict=True))
    return labels[name].strip('"')


def listed(image: Image, name: str) -> dict[str, str]:
    """What the bill of materials lists that lies where the label says; it is valid."""
    text = image.at(label(image, name)).read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    return {normalised(part["name"]): part["version"] for part in json.loads(text)["components"]}


def test_every_user_may_read_and_only_root_may_write(image: Image) -> None:
    paths = [image.at("."), *(path for path in image.at(".").rglob("*") if not path.is_symlink())]
    assert image.at("docker/start.py") in paths
    for path in paths:
        mode = path.stat().st_mode
        needed = 0o555 if path.is_dir() else 0o444
        assert mode & needed == needed, f"{path} is {stat.filemode(mode)}"
        assert not mode & 0o022, f"{path} is {stat.filemode(mode)}"


@pytest.mark.parametrize("variable", ["OPENAI_BLS_MODEL_REPOSITORY", "HF_HOME", "HOME"])
def test_group_0_may_write_where_something_is_written(image: Image, variable: str) -> None:
    """OpenShift's containers run as a user that it chooses, in group 0."""
    top = image.at(image.environment[variable])
    folders = [top, *(path for path in top.rglob("*") if path.is_dir())]
    for folder in folders:
        found = folder.stat()
        assert found.st_mode & 0o070 == 0o070, f"{folder} is {stat.filemode(found.st_mode)}"
        if is_root():
            assert found.st_gid == 0
    if is_root():
        assert top.stat().st_uid == 1000


def test_the_library_comes_from_its_wheel(image: Image) -> None:
    code = "import importlib.metadata as m, openai_bls as o; print(o.__file__, o.__version__, m.version('openai_bls'))"
    where, version, installed = python(image, code).split()
    assert "site-packages" in Path(where).parts
    assert not Path(where).is_relative_to(ROOT)
    assert version == installed
    assert "--exit-timeout" in start(image, "serve", "--help").stdout


def test_the_builders_help_and_dry_run_write_nothing(cpu: Image, tmp_path: Path) -> None:
    settings = {"OPENAI_BLS_MODEL_REPOSITORY": str(tmp_path / "models")}
    assert "--max-batch-size" in start(cpu, "build", "--help", **settings).stdout
    assert "--prompt" in start(cpu, "verify", "--help", **settings).stdout
    done = start(cpu, "build", "--dry-run", **settings)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "models").exists()


def test_nvidias_packages_stay(runtime: Image) -> None:
    found = packages(runtime)
    assert NVIDIA.items() <= found.items()
    assert {"opentelemetry-sdk", "rich", "starlette", "uvicorn", "tokenizers"} <= found.keys()


def test_the_bill_of_materials_names_every_package(runtime: Image) -> None:
    """And what wrote it has left."""
    found = listed(runtime, SBOM)
    assert found == packages(runtime)
    assert {"openai-bls", "torch", "transformers"} <= set(found)
    assert not runtime.at("/tmp/sbom").exists()


def test_both_images_write_it_alike(cpu: Image, runtime: Image, replay: Replay) -> None:
    stages = [replay.dockerfile.stages[name].commands for name in IMAGES]
    first, second = ([(one.flags, one.value) for one in stage if "cyclonedx_py" in one.original] for stage in stages)
    assert first == second
    assert len(first) == 1
    assert label(cpu, SBOM) == label(runtime, SBOM)
    for stage in stages:
        runs = [one.original for one in stage if one.cmd == "RUN"]
        # After all that is installed.
        assert "cyclonedx_py" in [run for run in runs if "pip" in run or "install.py" in run][-1]


def test_any_other_word_is_a_program(image: Image) -> None:
    done = start(image, "bash", "-c", 'echo "$0 $PWD"; readlink -f model_repository; exit 3', "a b")
    assert done.stdout.splitlines() == [f"a b {image.at('.')}", str(image.at("/models"))]
    assert (done.returncode, done.stderr) == (3, "")
    done = start(image, "servr", "--verbose")
    assert done.returncode == 127
    assert done.stderr.startswith(
        "error: cannot run servr (No such file or directory); the image's commands are serve, "
    )
    assert done.stderr.endswith(f"{', '.join(command.name for command in COMMANDS)}\n")
    assert start(image, "docker/start.py").returncode == 126
    assert start(image, "--version").stdout.startswith("openai_bls ")


def test_without_an_engine_it_says_what_to_mount(runtime: Image) -> None:
    assert not list(runtime.at("/models").iterdir())
    done = start(runtime, *runtime.metadata["CMD"])
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"there is no engine at {runtime.at('/models')}" in done.stderr
    assert f":{runtime.at('/models')} ..." in done.stderr
    assert "`build --model" in done.stderr


def test_models_are_brought_up_to_the_image(runtime: Image, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    settings = {"OPENAI_BLS_MODEL_REPOSITORY": str(repository)}
    # A copy that was cut short is made again.
    (repository / "openai_bls" / "1").mkdir(parents=True)
    (repository / "openai_bls" / "1" / "model.py").write_text("# half")
    done = start(runtime, "prepare", **settings)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in repository.iterdir() if path.is_dir()} == MODELS
    assert (repository / "ensemble" / "1").is_dir()

    code, config = repository / "openai_bls" / "1" / "model.py", repository / "openai_bls" / "config.pbtxt"
    assert code.read_text() != "# half"
    new, mine = code.read_bytes(), config.read_text() + "# mine\n"
    code.write_text("# of an older image\n")
    config.write_text(mine)
    (repository / "tensorrt_llm" / "1" / "engine.json").write_text("{}")
    # Said after the line that it works, before anything else, whatever comes of the engine; nothing is written.
    first = start(runtime, "serve", **settings).stdout.splitlines()[:2]
    assert "openai_bls/1/model.py" in first[1]
    assert code.read_text() == "# of an older image\n"

    done = start(runtime, "prepare", **settings)
    assert "replaced: openai_bls/1/model.py" in done.stdout
    assert "added" not in done.stdout
    assert (code.read_bytes(), config.read_text()) == (new, mine)
    assert "replaced" not in start(runtime, "prepare", **settings).stdout
    assert {path.name for path in repository.iterdir() if path.is_dir()} == MODELS


def test_what_cannot_be_written_or_understood_is_one_sentence(runtime: Image, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = start(runtime, "prepare", OPENAI_BLS_MODEL_REPOSITORY=str(tmp_path / "file" / "models"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("openai-bls prepare: error: cannot write to ")


def test_an_engine_in_the_image(cpu: Image, replay: Replay, index: Index, tmp_path: Path) -> None:
    """The stage `with-engine`, whose RUN needs what the CPU image has, with a local checkpoint as build context."""
    shutil.copytree(cpu.root, tmp_path / "root")
    arguments = {"ENGINE_ARGS": "--served-model-name mine --max-batch-size 4"}
    again = Replay(ROOT, arguments, {**index.settings, "OMP_NUM_THREADS": "1"}, replay.contexts)
    made = again.run("with-engine", replace(cpu, root=tmp_path / "root"))
    manifest = json.loads((made.at("/models") / "tensorrt_llm" / "1" / "engine.json").read_text())
    assert (manifest["model_name"], manifest["max_batch_size"]) == ("mine", 4)
    assert not made.at("/checkpoint").exists()


# --- the CPU image's ENTRYPOINT, HEALTHCHECK and end, as Docker would run them


@dataclass(frozen=True)
class Container:
    """The image, running."""

    image: Image
    process: subprocess.Popen[str]
    environment: dict[str, str]

    def health(self) -> subprocess.CompletedProcess[str]:
        """What the HEALTHCHECK says."""
        kind, *words = self.image.metadata["HEALTHCHECK"]
        assert kind == "CMD"
        command = [self.image.mapped(word) for word in words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)

    def stub(self, model: str) -> int:
        """The process id of a model's process."""
        folder = str(self.image.at("/models") / model)
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_text().split("\0")
                except OSError:
                    continue
                if words[0].endswith(STUB_PROGRAM) and any(word.startswith(f"{folder}/") for word in words):
                    return int(entry.name)
        raise LookupError(model)


@pytest.fixture
def container(cpu: Image) -> Iterator[Container]:
    """Up to the line with which the launcher says that everything is ready."""
    with lease_ports() as leased:
        ports = {
            "OPENAI_BLS_TRITON_HTTP_PORT": str(leased.http),
            "OPENAI_BLS_TRITON_GRPC_PORT": str(leased.grpc),
            "OPENAI_BLS_TRITON_METRICS_PORT": str(leased.metrics),
            "OPENAI_BLS_HTTP_PORT": str(leased.openai),
        }
        environment = cpu.process_environment({**ports, "OMP_NUM_THREADS": "1"})
        command = [cpu.mapped(word) for word in (*cpu.metadata["ENTRYPOINT"], *cpu.metadata["CMD"])]
        with subprocess.Popen(
            command, cwd=cpu.at("."), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                lines_until(process.stdout, "Listening:")
                yield Container(cpu, process, environment)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.communicate()


@pytest.mark.triton
def test_it_is_healthy_until_a_model_dies_and_ends_when_told_to(container: Container) -> None:
    done = container.health()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    os.kill(container.stub("tensorrt_llm"), signal.SIGKILL)
    # What /health knows may be a second old.
    deadline = time.monotonic() + 60
    while (done := container.health()).returncode == 0:
        assert time.monotonic() < deadline
    assert done.returncode == 1
    assert done.stdout.startswith("/v1 on port ")
    assert "tensorrt_llm has died" in done.stdout
    assert done.stdout.count("\n") == 1

    # The first one would wait for the dead process until the exit timeout; the second one kills.
    container.process.send_signal(signal.SIGTERM)
    container.process.send_signal(signal.SIGINT)
    output, _ = container.process.communicate()
    assert "stopping: up to 30 s for running requests" in output
    assert "killing" in output


@pytest.mark.triton
def test_the_servers_own_command_finds_the_engine(cpu: Image) -> None:
    """`docker run IMAGE tritonserver --model-repository=model_repository`, on free ports, with one of its models."""
    words = [cpu.mapped(word) for word in cpu.metadata["ENTRYPOINT"]]
    with lease_ports() as leased:
        server = [
            *("tritonserver", "--model-repository=model_repository", "--allow-metrics=false", "--allow-grpc=false"),
            *("--model-control-mode=explicit", "--load-model=tensorrt_llm", f"--http-port={leased.http}"),
        ]
        environment = cpu.process_environment({"OMP_NUM_THREADS": "1", "OPENAI_BLS_ENGINE": "null"})
        with subprocess.Popen(
            [*words, *server], cwd=cpu.at("."), env=environment, stderr=subprocess.PIPE, text=True
        ) as process:
            lines = lines_until(process.stderr, "Started HTTPService")
            # It is the server itself that gets the signal.
            process.terminate()
            _, rest = process.communicate()
        assert any("successfully loaded 'tensorrt_llm'" in line for line in lines), "".join(lines[-30:])
        assert process.returncode == 0, rest
