"""docker/start.py, the entry point of the images, with this Python in the place of the images'."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from openai_bls.commands.table import COMMANDS
from tests.paths import ROOT
from tests.unit.docker.text import read

STAGES = read(ROOT / "Dockerfile").stages
MODELS = {"ensemble", "openai_bls", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls"}


def start(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "docker" / "start.py", *arguments],
        env={"PATH": "/usr/bin:/bin", "OPENAI_BLS_MODEL_REPOSITORY": str(repository)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_any_other_word_is_a_program(tmp_path: Path) -> None:
    done = start(tmp_path, "bash", "-c", 'echo "$0"; exit 3', "a b")
    assert (done.returncode, done.stdout, done.stderr) == (3, "a b\n", "")
    done = start(tmp_path, "servr", "--verbose")
    assert done.returncode == 127
    assert done.stderr.startswith(
        "error: cannot run servr (No such file or directory); the image's commands are serve, "
    )
    assert done.stderr.endswith(f"{', '.join(command.name for command in COMMANDS)}\n")
    assert start(tmp_path, str(tmp_path)).returncode == 126
    assert start(tmp_path, "--version").stdout.startswith("openai_bls ")


def test_the_builders_help_and_dry_run_write_nothing(tmp_path: Path) -> None:
    assert "--max-batch-size" in start(tmp_path / "models", "build", "--help").stdout
    assert "--prompt" in start(tmp_path / "models", "verify", "--help").stdout
    done = start(tmp_path / "models", "build", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("stage", ["cpu", "runtime"])
def test_without_an_engine_it_says_what_to_mount(stage: str, tmp_path: Path) -> None:
    (command,) = (command for command in STAGES[stage].commands if command.cmd == "CMD")
    done = start(tmp_path, *command.value)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"there is no engine at {tmp_path}" in done.stderr
    assert f":{tmp_path} ..." in done.stderr
    assert "`build --model" in done.stderr


def test_models_are_brought_up_to_the_image(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    # A copy that was cut short is made again.
    (repository / "openai_bls" / "1").mkdir(parents=True)
    (repository / "openai_bls" / "1" / "model.py").write_text("# half")
    done = start(repository, "prepare")
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
    first = start(repository, "serve").stdout.splitlines()[:2]
    assert "openai_bls/1/model.py" in first[1]
    assert code.read_text() == "# of an older image\n"

    done = start(repository, "prepare")
    assert "replaced: openai_bls/1/model.py" in done.stdout
    assert "added" not in done.stdout
    assert (code.read_bytes(), config.read_text()) == (new, mine)
    assert "replaced" not in start(repository, "prepare").stdout
    assert {path.name for path in repository.iterdir() if path.is_dir()} == MODELS


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = start(tmp_path / "file" / "models", "prepare")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("openai-bls prepare: error: cannot write to ")
