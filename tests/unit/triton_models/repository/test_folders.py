"""Where the models of a server lie: in one repository, in several, or as object storage gives them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_bls.core.keys.api_keys import ApiKeysError
from openai_bls.core.settings import SettingsError
from openai_bls.transport.ipc import sockets
from openai_bls.triton_models.repository.engines import TritonKeys, backends
from openai_bls.triton_models.repository.folders import ModelFolders
from openai_bls.triton_models.server.process import repositories

PID = os.getpid()


def folders(own: Path, model: str = "openai_bls", owner: int = PID) -> ModelFolders:
    own.mkdir(parents=True, exist_ok=True)
    return ModelFolders({"model_repository": str(own), "model_name": model, "model_version": "1"}, owner)


@pytest.fixture(autouse=True)
def _private_folder() -> Iterator[None]:
    yield
    for note in Path(sockets.address("x", PID)).parent.glob("folder-of-*"):
        note.unlink()
    sockets.unlink(sockets.address("x", PID))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the command line of a tritonserver with two repositories, one of them relative."""
    program = tmp_path / "tritonserver"
    program.symlink_to(sys.executable)
    flags = [f"--model-repository={tmp_path / 'one'}", "--model-store", "two", "--model-repository=s3://bucket/three"]
    code = "print(flush=True); input()"
    process = subprocess.Popen(
        [program, "-c", code, *flags], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.communicate()


def test_the_other_repositories_of_the_server(tmp_path: Path, server: subprocess.Popen[bytes]) -> None:
    assert repositories(server.pid) == [tmp_path / "one", tmp_path / "two"]
    found = folders(tmp_path / "zero" / "openai_bls", owner=server.pid)
    (tmp_path / "two" / "tensorrt_llm").mkdir(parents=True)
    assert found.find("tensorrt_llm") == found.of("tensorrt_llm") == tmp_path / "two" / "tensorrt_llm"
    # The nearest counts, and what is nowhere would be next to it.
    (tmp_path / "zero" / "tensorrt_llm").mkdir()
    assert found.find("tensorrt_llm") == tmp_path / "zero" / "tensorrt_llm"
    assert found.find("preprocessing") is None
    assert found.of("preprocessing") == tmp_path / "zero" / "preprocessing"
    for place in ("zero", "one"):
        manifest = tmp_path / place / "tensorrt_llm_small" / "1" / "engine.json"
        manifest.parent.mkdir(parents=True)
        manifest.touch()
    assert found.suffixes("tensorrt_llm", "tokenizer") == ["small"]


def test_object_storage(tmp_path: Path) -> None:
    """Each in a folder of any name: models find each other by what they announce, whoever is first."""
    api, engine = folders(tmp_path / "folderA"), folders(tmp_path / "folderB", "tensorrt_llm")
    # What lies next to it is somebody else's.
    (tmp_path / "tensorrt_llm").mkdir()
    assert api.find("tensorrt_llm") is None
    assert api.of("tensorrt_llm").is_relative_to(api.own)
    engine.announce()
    assert api.find("tensorrt_llm") == api.of("tensorrt_llm") == engine.own
    (api.own / "1" / "tokenizer").mkdir(parents=True)
    (api.own / "1" / "tokenizer_small").mkdir()
    assert [backend.engine for backend in backends(api, api.own, "1")] == ["tensorrt_llm", "tensorrt_llm_small"]
    assert backends(api, api.own, "1")[0].engine_dir == engine.own
    # A reload copies it to another place, and an unload removes that.
    again = folders(tmp_path / "folderC", "tensorrt_llm")
    again.announce()
    assert api.find("tensorrt_llm") == again.own
    again.own.rmdir()
    assert api.find("tensorrt_llm") is None
    again.withdraw()
    again.withdraw()


def test_models_with_their_names_write_nothing_down(tmp_path: Path) -> None:
    named = folders(tmp_path / "openai_bls")
    named.announce()
    assert not list(Path(sockets.address("x", PID)).parent.glob("folder-of-*"))
    named.withdraw()


def test_keys_of_an_openai_bls_that_comes_later(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice: a1\n", encoding="utf-8")
    late = TritonKeys(folders(tmp_path / "folderA", "preprocessing"), {})
    assert TritonKeys(folders(tmp_path / "folderA", "x"), {"OPENAI_BLS_API_KEY": "k"})().check("k", "") == ""
    assert not late().required
    api = folders(tmp_path / "folderB")
    parameter = f'key: "api_keys_file" value {{ string_value: "{tmp_path / "keys"}" }}'
    (api.own / "config.pbtxt").write_text(f"parameters {{ {parameter} }}", encoding="utf-8")
    api.announce()
    assert late().check("a1", "") == "alice"
    # Once known they stay, whatever becomes of that folder.
    api.withdraw()
    assert late().required


def test_bad_keys_are_a_sentence(tmp_path: Path) -> None:
    keys = TritonKeys(folders(tmp_path / "folderA", "preprocessing"), {})
    assert not keys().required
    api = folders(tmp_path / "folderB")
    (api.own / "config.pbtxt").write_text("parameters {")
    api.announce()
    with pytest.raises((SettingsError, ApiKeysError)):
        keys()
    # Not open meanwhile.
    with pytest.raises((SettingsError, ApiKeysError)):
        keys()
