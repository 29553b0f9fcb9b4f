"""The engine of `serve --model`: when it is built, when what is there will do, when neither."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from openai_bls.commands.building import first_engine
from openai_bls.core.manifest import Manifest, write_manifest
from openai_bls.launcher import workspace
from openai_bls.launcher.errors import LaunchError

MANIFEST = Manifest(
    engine="transformers",
    model_name="first",
    max_model_len=8,
    max_batch_size=1,
    created=1,
    builder={"model": "someone/first"},
)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that are built, each with what follows the repository on the command line, in the place of builds."""
    models: list[str] = []

    def note(words: Sequence[str]) -> None:
        assert (words[0], words[2]) == ("--model", "--model-repository")
        models.append(" ".join([words[1], *words[4:]]))

    monkeypatch.setattr(first_engine, "build_apart", note)
    return models


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own workspace, which is not there yet."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return workspace.own_workspace({"XDG_DATA_HOME": str(tmp_path)})


def ensure(repository: Path, model: str | None, engine: str | None = None, given: Sequence[str] = ()) -> str:
    said: list[str] = []
    first_engine.ensure_engine(repository, model, said.append, engine=engine, given=given)
    return "\n".join(said)


def put(repository: Path, manifest: Manifest = MANIFEST) -> None:
    workspace.update(repository, print)
    write_manifest(repository / "tensorrt_llm" / "1", manifest)


def test_without_an_engine(repository: Path, built: list[str]) -> None:
    assert "serves the demo: a toy" in ensure(repository, None)
    assert workspace.is_current(repository)
    assert "there is no engine yet: building someone/first" in ensure(repository, "someone/first")
    assert built == [str(workspace.demo_checkpoint()), "someone/first"]


def test_an_engine_elsewhere_is_not_the_demo(
    repository: Path, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BLS_ENGINE_ADDRESS", "unix:/run/engine")
    assert "demo" not in ensure(repository, None)
    assert workspace.is_current(repository)
    assert not built


def test_with_the_engine(repository: Path, built: list[str]) -> None:
    put(repository)
    assert ensure(repository, None) == ""
    assert ensure(repository, "someone/first") == "the engine first is there: nothing to build"
    # Of a release that did not say what it built from.
    put(repository, msgspec.structs.replace(MANIFEST, builder={}))
    assert ensure(repository, "another/first") == "the engine first is there: nothing to build"
    assert not built


@pytest.mark.usefixtures("engine_doubles")
def test_with_another_engine(repository: Path, built: list[str]) -> None:
    put(repository)
    assert ensure(repository, "another/first") == "building another/first in the place of first"
    assert built == ["another/first"]
    put(repository, msgspec.structs.replace(MANIFEST, engine="double"))
    with pytest.raises(LaunchError, match=r" first, .*The Double .* x/y: .*build --model x/y`"):
        ensure(repository, "x/y")
    assert built == ["another/first"]


def test_with_an_engine_of_another_kind(repository: Path, built: list[str]) -> None:
    assert "serves the demo: a toy" in ensure(repository, None, "vllm")
    put(repository)
    assert ensure(repository, "someone/first", "auto") == "the engine first is there: nothing to build"
    assert ensure(repository, "someone/first", MANIFEST.engine) == "the engine first is there: nothing to build"
    assert ensure(repository, "someone/first", "vllm") == "building someone/first in the place of first"
    assert built == [f"{workspace.demo_checkpoint()} --engine vllm", "someone/first --engine vllm"]
    with pytest.raises(LaunchError, match=f"first on {MANIFEST.engine}, .* vllm: .*--model"):
        ensure(repository, None, "vllm")


def test_options_of_the_build(repository: Path, built: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are of the engine that is there, unless --model names another; the build sees what has changed."""
    ensure(repository, None, given=["--dtype=float16"])
    put(repository)
    assert (
        ensure(repository, None, given=["--dtype=float16"]) == ensure(repository, "someone/first", given=["-x"]) == ""
    )
    kind = f"--engine {MANIFEST.engine}"
    demo = workspace.demo_checkpoint()
    assert built == [f"{demo} --dtype=float16", f"someone/first {kind} --dtype=float16", f"someone/first {kind} -x"]
    put(repository, msgspec.structs.replace(MANIFEST, builder={}))
    with pytest.raises(LaunchError, match=r"--model .*--dtype=float16"):
        ensure(repository, None, given=["--dtype=float16"])
    (repository / "tensorrt_llm" / "1" / "engine.json").unlink()
    monkeypatch.setenv("OPENAI_BLS_ENGINE_ADDRESS", "unix:/run/engine")
    with pytest.raises(LaunchError, match=": --dtype=float16 "):
        ensure(repository, None, given=["--dtype=float16"])


def test_a_local_checkpoint_is_the_same_from_every_folder(
    repository: Path, built: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    put(repository, msgspec.structs.replace(MANIFEST, builder={"model": str(tmp_path / "mine")}))
    monkeypatch.chdir(tmp_path)
    assert "nothing to build" in ensure(repository, "mine")
    assert not built


def test_a_workspace_of_an_older_release_is_updated(repository: Path, built: list[str]) -> None:
    put(repository)
    record = repository / workspace.RECORD_NAME
    record.write_text(record.read_text().replace('"complete": true', '"complete": false'))
    assert ensure(repository, None) == f"model repository: {repository}"
    assert workspace.is_current(repository)


def test_a_build_that_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A real one, in a process of its own, whose sentence is seen."""
    with pytest.raises(LaunchError, match="/nothing "):
        first_engine.build_apart(["--model", str(tmp_path / "nothing"), "--model-repository", str(tmp_path / "models")])
    assert capfd.readouterr().err.startswith("openai-bls serve: error: there is no ")
