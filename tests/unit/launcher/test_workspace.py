"""Workspaces: made, updated from an older release, and left alone where somebody changed them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from openai_bls.launcher import workspace
from openai_bls.launcher.errors import LaunchError
from openai_bls.triton_models.repository.render_configs import configure
from openai_bls.triton_models.tensors.models import MODELS
from tests.unit.full_disk import full_disk

ROOT = Path(__file__).resolve().parents[3]
CODE = Path("openai_bls/1/model.py")
OLD = b"# of an older release\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A workspace of this release."""
    folder = tmp_path / "data" / "model_repository"
    workspace.update(folder, print)
    return folder


def update(repository: Path, *, replace_edited: bool = False) -> list[str]:
    said: list[str] = []
    workspace.update(repository, said.append, replace_edited=replace_edited)
    return said


def age(repository: Path, *, code: bool = True, tables: bool = False) -> None:
    """Make an older release's of it: one whose model.py, or whose tables, were others."""
    path = repository / workspace.RECORD_NAME
    record = json.loads(path.read_text())
    if code:
        (repository / CODE).write_bytes(OLD)
        record["code"][str(CODE)] = hashlib.sha256(OLD).hexdigest()
    if tables:
        record["tables"] = "another"
    path.write_text(json.dumps(record))


def test_it_is_the_committed_repository(repository: Path) -> None:
    """Of which everything but the build's files is written, and nothing else."""
    found = {path.relative_to(repository) for path in repository.rglob("*") if path.is_file()}
    names = [path.relative_to(ROOT / "model_repository") for path in (ROOT / "model_repository").glob("*/1/model.py")]
    names = [path for path in names if path.parts[0] in MODELS]
    assert found == {Path(workspace.RECORD_NAME), *names, *(Path(model, "config.pbtxt") for model in MODELS)}
    for path in names:
        assert (repository / path).read_bytes() == (ROOT / "model_repository" / path).read_bytes()
    assert (repository / "ensemble" / "1").is_dir()
    assert not configure(repository)
    assert workspace.is_current(repository)
    assert not update(repository)


def test_code_of_an_older_release_is_replaced(repository: Path) -> None:
    current = (repository / CODE).read_bytes()
    further = repository / "tensorrt_llm_small" / "1"
    further.mkdir(parents=True)
    shutil.copy(repository / "tensorrt_llm" / "1" / "model.py", further)
    age(repository)
    assert not workspace.is_current(repository)
    assert workspace.outdated(repository) == [str(CODE)]
    assert update(repository) == [f"replaced: {CODE}"]
    assert (repository / CODE).read_bytes() == current
    assert workspace.is_current(repository)


def test_the_code_of_a_further_engine_is_replaced(repository: Path) -> None:
    manifest = {"engine": "null", "model_name": "s", "max_model_len": 8, "max_batch_size": 1, "created": 0}
    for model in ("tensorrt_llm_small", "preprocessing_small"):
        (repository / model / "1").mkdir(parents=True)
        shutil.copy(repository / model.removesuffix("_small") / "config.pbtxt", repository / model)
    (repository / "tensorrt_llm_small" / "1" / "engine.json").write_text(json.dumps(manifest))
    path = repository / workspace.RECORD_NAME
    record = json.loads(path.read_text())
    for model in ("tensorrt_llm", "preprocessing"):
        old = (repository / model / "1" / "model.py").read_bytes() + b"# older\n"
        for name in (model, f"{model}_small"):
            (repository / name / "1" / "model.py").write_bytes(old)
        record["code"][f"{model}/1/model.py"] = hashlib.sha256(old).hexdigest()
    path.write_text(json.dumps(record))
    assert sorted(update(repository)) == [
        f"replaced: {name}/1/model.py"
        for name in ("preprocessing", "preprocessing_small", "tensorrt_llm", "tensorrt_llm_small")
    ]


def test_code_that_somebody_changed_stays_unless_it_is_asked_for(repository: Path) -> None:
    age(repository)
    (repository / CODE).write_text("# mine\n")
    (said,) = update(repository)
    assert said.startswith(f"{CODE} stays as it is, since it was changed here")
    assert (repository / CODE).read_text() == "# mine\n"
    assert update(repository, replace_edited=True) == [f"replaced: {CODE}"]


def test_a_preprocessing_of_somebody_else_stays(repository: Path) -> None:
    theirs = repository / "preprocessing" / "1" / "model.py"
    theirs.write_text("class TritonPythonModel: ...\n")
    assert not workspace.outdated(repository)
    assert not update(repository, replace_edited=True)


def test_settings_survive_other_tables(repository: Path) -> None:
    config = repository / "openai_bls" / "config.pbtxt"
    configure(repository, ["openai_bls.max_choices=7"])
    config.write_text(config.read_text().replace("max_batch_size: 0", "max_batch_size: 0\n\n"))
    age(repository, code=False, tables=True)
    assert update(repository) == ["rendered: openai_bls/config.pbtxt, with the values that it had"]
    assert 'key: "max_choices" value { string_value: "7" }' in config.read_text()
    assert not configure(repository)


def test_a_config_that_is_not_understood_is_one_sentence(repository: Path) -> None:
    config = repository / "openai_bls" / "config.pbtxt"
    config.write_text(config.read_text() + 'parameters { key: "speed" value { string_value: "9" } }\n')
    text = config.read_text()
    age(repository, tables=True)
    with pytest.raises(LaunchError, match=f"{repository} .*openai_bls: .*'speed'"):
        update(repository)
    assert config.read_text() == text
    assert not workspace.is_current(repository)


def test_one_that_was_cut_short_is_completed(repository: Path) -> None:
    (repository / "tensorrt_llm" / "config.pbtxt").unlink()
    record = repository / workspace.RECORD_NAME
    record.write_text(record.read_text().replace("true", "false"))
    assert not workspace.is_current(repository)
    assert update(repository) == ["added: tensorrt_llm"]
    assert workspace.is_current(repository)


def test_which_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"XDG_DATA_HOME": str(tmp_path / "data")}
    own = tmp_path / "data" / "openai_bls" / "model_repository"
    assert workspace.default_repository(environ) == own
    assert (
        workspace.own_workspace({"HOME": "/home/x"}) == Path("~/.local/share/openai_bls/model_repository").expanduser()
    )
    (tmp_path / "model_repository").mkdir()
    assert workspace.default_repository(environ) == Path("model_repository")
    environ[workspace.REPOSITORY_VARIABLE] = "/models"
    assert workspace.default_repository(environ) == Path("/models")


def test_vacant(tmp_path: Path) -> None:
    assert workspace.is_vacant(tmp_path / "none")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "file").touch()
    assert workspace.is_vacant(tmp_path)
    assert not workspace.is_vacant(tmp_path / "file")
    (tmp_path / "model").mkdir()
    assert not workspace.is_vacant(tmp_path)


def test_a_disk_that_takes_nothing(repository: Path) -> None:
    age(repository)
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    with full_disk(0), pytest.raises(LaunchError, match=os.strerror(errno.EFBIG)):
        update(repository)
    assert {path: path.read_bytes() for path in before} == before


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match=r"/file.*--model-repository"):
        update(tmp_path / "file" / "models")
