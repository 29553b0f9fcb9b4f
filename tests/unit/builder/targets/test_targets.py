"""Further engines: built beside the default one, replaced, cut short, removed."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_bls.builder.build import remove
from openai_bls.builder.targets.selection import target_of
from openai_bls.core.manifest import OLD, BuildError, Manifest, load_manifest
from openai_bls.engines.registry import create_engine
from openai_bls.triton_models.repository.engines import served_names
from tests.engine_contract.support import Recorder, request
from tests.unit.builder.builds import build_main, refusal, run
from tests.unit.builder.repositories import MODELS, contents

# Of the names that a build cut short may leave, in the folder of `openai_bls`.
IN_HAND = (".building-small", ".gone-small")


def in_hand(repository: Path) -> list[str]:
    return [name for name in IN_HAND if (repository / "openai_bls" / "1" / name).exists()]


def names(repository: Path) -> list[str]:
    return sorted(path.name for path in repository.iterdir())


def test_a_further_engine(source: Path, repository: Path) -> None:
    default, _ = run(source, repository, served_model_name="first")
    before = contents(repository)
    small, lines = run(source, repository, name="small", max_model_len=300, max_batch_size=3)
    assert (small.model_name, small.max_model_len, small.max_batch_size) == ("tiny-qwen", 300, 3)
    assert "tensorrt_llm_small/1: tiny-qwen" in lines[-1]
    after = contents(repository)
    assert {path: after[path] for path in before} == before
    assert names(repository) == sorted([*MODELS, "preprocessing_small", "tensorrt_llm_small"])
    assert not in_hand(repository)
    assert load_manifest(repository / "tensorrt_llm" / "1") == default
    assert load_manifest(repository / "tensorrt_llm_small" / "1") == small
    tokenizer = before["preprocessing/1/tokenizer/tokenizer.json"]
    for folder in ("tensorrt_llm_small/1/tokenizer", "preprocessing_small/1/tokenizer", "openai_bls/1/tokenizer_small"):
        assert after[f"{folder}/tokenizer.json"] == tokenizer
    for model in ("tensorrt_llm", "preprocessing"):
        assert after[f"{model}_small/1/model.py"] == after[f"{model}/1/model.py"]
        config, committed = (after[f"{name}/config.pbtxt"].decode() for name in (f"{model}_small", model))
        lines, expected = (
            [line for line in text.splitlines() if not line.startswith("#")] for text in (config, committed)
        )
        assert [line.replace(f'"{model}_small"', f'"{model}"') for line in lines] == expected
        assert "--name small" in config
    recorder = Recorder()
    engine = create_engine(repository / "tensorrt_llm_small" / "1", recorder, {"num_threads": "1"})
    engine.submit(request(1))
    recorder.wait_end(1)
    engine.close()
    assert len(recorder.tokens[1]) == 8


def test_a_second_run_does_nothing(source: Path, repository: Path) -> None:
    first, _ = run(source, repository, name="small", engine="null")
    config = repository / "tensorrt_llm_small" / "config.pbtxt"
    # Somebody's own setting stays.
    config.write_text(config.read_text().replace("count: 1", "count: 2"))
    before = contents(repository)
    again, lines = run(source, repository, name="small", engine="null")
    assert again == first
    assert "up to date" in lines[-1]
    assert contents(repository) == before
    run(source, repository, name="small", engine="null", force=True)
    assert "count: 1" in config.read_text()


@pytest.mark.parametrize(
    "path",
    [
        "tensorrt_llm_small/config.pbtxt",
        "tensorrt_llm_small/1/tokenizer/tokenizer.json",
        "preprocessing_small/1/model.py",
        "preprocessing_small/1/tokenizer/tokenizer.json",
        "openai_bls/1/tokenizer_small/tokenizer.json",
    ],
)
def test_what_is_missing_is_built_again(source: Path, repository: Path, path: str) -> None:
    run(source, repository, name="small", engine="null")
    before = contents(repository)
    (repository / path).unlink()
    run(source, repository, name="small", engine="null")
    after = contents(repository)
    assert set(after) == set(before)
    assert after[path] == before[path]


def test_another_release_builds_again(source: Path, repository: Path) -> None:
    """Its model.py may not fit the one that was copied."""
    run(source, repository, name="small", engine="null")
    code = repository / "preprocessing" / "1" / "model.py"
    code.write_text(code.read_text() + "# a newer one\n")
    run(source, repository, name="small", engine="null")
    assert (repository / "preprocessing_small" / "1" / "model.py").read_text().endswith("# a newer one\n")


def test_engines_are_built_and_replaced_independently(source: Path, repository: Path) -> None:
    run(source, repository, engine="null", served_model_name="first")
    run(source, repository, engine="null", served_model_name="second", name="small")
    run(source, repository, engine="null", served_model_name="third", name="tiny_1")
    before = contents(repository)
    run(source, repository, engine="null", served_model_name="first", max_model_len=77)
    run(source, repository, engine="null", served_model_name="other", name="tiny_1")
    after = contents(repository)
    changed = {path for path in before if before[path] != after[path]}
    assert changed == {"tensorrt_llm/1/engine.json", "tensorrt_llm_tiny_1/1/engine.json"}
    assert served_names(repository) == {
        "tensorrt_llm": ["openai_bls", "first"],
        "tensorrt_llm_small": ["second"],
        "tensorrt_llm_tiny_1": ["other"],
    }


@pytest.mark.parametrize("name", ["bls", "Small", "_a", "a-b", "a" * 33, "../x", "a/b", "a\n"])
def test_names_that_cannot_be(source: Path, repository: Path, name: str) -> None:
    assert repr(name) in refusal(source, repository, name=name)
    with pytest.raises(BuildError, match=re.escape(repr(name))):
        remove(repository, name, print)
    assert names(repository) == sorted(MODELS)


def test_served_names_that_are_taken(source: Path, repository: Path) -> None:
    run(source, repository, engine="null")
    run(source, repository, engine="null", name="small", served_model_name="second")
    said = refusal(source, repository, engine="null", name="tiny")
    assert said == "'tiny-qwen' is a name of the engine in tensorrt_llm already: give another with --served-model-name"
    # An alias of the default engine.
    assert "in tensorrt_llm already" in refusal(source, repository, name="tiny", served_model_name="openai_bls")
    assert "in tensorrt_llm_small already" in refusal(source, repository, name="tiny", served_model_name="second")
    assert "in tensorrt_llm_small already" in refusal(source, repository, served_model_name="second")
    config = repository / "openai_bls" / "config.pbtxt"
    config.write_text(config.read_text().replace('string_value: "openai_bls"', 'string_value: "gpt-4, big"'))
    assert "in tensorrt_llm already" in refusal(source, repository, name="tiny", served_model_name="big")
    # Its own name, and the default engine's own alias.
    run(source, repository, engine="null", name="small", served_model_name="second", force=True)
    run(source, repository, engine="null", served_model_name="gpt-4")


@pytest.mark.parametrize("folder", ["tensorrt_llm_small", "preprocessing_small"])
def test_somebody_elses_models_are_left_alone(source: Path, repository: Path, folder: str) -> None:
    (repository / folder / "1").mkdir(parents=True)
    (repository / folder / "1" / "model.py").write_text("mine")
    (repository / folder / "config.pbtxt").write_text('backend: "python"')
    before = contents(repository)
    assert refusal(source, repository, name="small").startswith(f"{folder} is not of an engine that was built here")
    with pytest.raises(BuildError, match=f"{folder} "):
        remove(repository, "small", print)
    assert contents(repository) == before


def test_ours_are_known_when_parts_are_missing(source: Path, repository: Path) -> None:
    """`make clean` takes the tokenizers."""
    before = contents(repository)
    run(source, repository, engine="null", name="small")
    for again in (
        lambda: run(source, repository, engine="null", name="small"),
        lambda: remove(repository, "small", print),
    ):
        (repository / "tensorrt_llm_small" / "1" / "engine.json").unlink()
        shutil.rmtree(repository / "preprocessing_small" / "1" / "tokenizer")
        again()
    assert contents(repository) == before


def test_a_repository_that_nobody_may_change(
    source: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is up to date needs no change; all else is refused in one sentence."""
    run(source, repository, engine="null", served_model_name="first")
    run(source, repository, engine="null", name="small")
    before = contents(repository)
    where = f"the model repository cannot be changed: {os.strerror(errno.EROFS)} ({repository}/"

    def refused(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    # Root may write wherever the mode forbids it.
    for change in ("mkdir", "rename", "replace", "unlink", "write_text", "write_bytes"):
        monkeypatch.setattr(Path, change, refused)
    assert refusal(source, repository, engine="null", force=True).startswith(where)
    assert refusal(source, repository, engine="null", name="other", served_model_name="other").startswith(where)
    assert refusal(source, repository, engine="null", name="small", served_model_name="new").startswith(where)
    assert build_main(["--model-repository", str(repository), "--remove", "small"]) == 2
    assert capsys.readouterr().err.startswith(f"openai-bls build: error: {where}")
    assert contents(repository) == before


def test_not_a_repository(source: Path, repository: Path, tmp_path: Path) -> None:
    assert "no folder openai_bls" in refusal(source, tmp_path, name="small")
    (repository / "tensorrt_llm" / "1" / "model.py").unlink()
    assert "tensorrt_llm has no 1/model.py" in refusal(source, repository, name="small")


class Killed(BaseException):
    """Nothing in a place waits for it, so that this is as good as a signal."""


@contextlib.contextmanager
def renames(monkeypatch: pytest.MonkeyPatch, *, at_most: int) -> Iterator[list[Path]]:
    """Die at the one after so many; yields what was to be renamed then, once it has been."""
    rename, count = Path.rename, 0
    died: list[Path] = []

    def counted(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count > at_most:
            died.append(self)
            raise Killed
        return rename(self, target)

    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(Path, "rename", counted)
        yield died


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("commits", range(9))
def test_every_moment_of_a_commit_and_of_its_recovery(
    source: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, commits: int, *, replaces: bool
) -> None:
    """Old or new, never a mixture: where the engine is in its place, what is beside it is of the same build. A recovery
    that is cut short itself, at any moment, is gone on with."""
    if replaces:
        run(source, repository, engine="null", name="small")
    before = served(repository)
    manifest = Manifest(engine="null", model_name="new", max_model_len=9, max_batch_size=1, created=1)
    for recoveries in itertools.count():
        target = target_of(repository, "small")
        prepared = target.begin()
        (prepared.checkpoint / "config.json").write_text("new")
        for folder in prepared.tokenizers:
            (folder / "tokenizer.json").write_text("new")
        with renames(monkeypatch, at_most=commits):
            target.commit(manifest, {"tensorrt_llm_small": "new"})
        consistent(repository, before)
        with renames(monkeypatch, at_most=recoveries) as died:
            target_of(repository, "small").clean()
        consistent(repository, before)
        target_of(repository, "small").clean()
        assert not in_hand(repository)
        after = served(repository)
        if commits < (7 if replaces else 4):
            assert after == before
        else:
            assert {path: text for path, text in after.items() if path.endswith("tokenizer.json")} == dict.fromkeys(
                ("tensorrt_llm_small/1/tokenizer/tokenizer.json", "preprocessing_small/1/tokenizer/tokenizer.json",
                 "openai_bls/1/tokenizer_small/tokenizer.json"), b"new",
            )  # fmt: skip
            return
        if not died:
            return


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("commits", range(25))
def test_every_moment_of_the_default_engines_commit(
    source: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, commits: int, *, replaces: bool
) -> None:
    """The same for the default engine, whose folders and config.pbtxt files take the places of others one by one."""
    if replaces:
        run(source, repository, engine="null")
    before = served(repository)
    manifest = Manifest(engine="null", model_name="new", max_model_len=9, max_batch_size=1, created=1)
    for recoveries in itertools.count():
        target = target_of(repository, "")
        prepared = target.begin()
        for folder in (prepared.checkpoint, prepared.engine, *prepared.tokenizers):
            (folder / "file").write_text("new")
        with renames(monkeypatch, at_most=commits):
            target.commit(manifest, {"tensorrt_llm": "new"})
        if commits and replaces and served(repository) != before:
            now_or_never = load_manifest(target.version_dir).model_name == "new"
            assert now_or_never or (target.version_dir / f"{OLD}checkpoint").exists()
        with renames(monkeypatch, at_most=recoveries) as died:
            target_of(repository, "").clean()
        target_of(repository, "").clean()
        assert not [path for path in repository.rglob(".*") if path.name != ".gitkeep"]
        after = served(repository)
        if commits < moves_of_a_commit(replaces=replaces):
            assert after == before
        else:
            assert load_manifest(target.version_dir) == manifest
            folders = ("checkpoint", "engine", "tokenizer")
            new = {path for path, text in after.items() if text == b"new"}
            assert new == {
                *(f"tensorrt_llm/1/{folder}/file" for folder in folders),
                *(f"{model}/1/tokenizer/file" for model in ("preprocessing", "postprocessing", "openai_bls")),
                "tensorrt_llm/config.pbtxt",
            }
            return
        if not died:
            return


def moves_of_a_commit(*, replaces: bool) -> int:
    """Of the default engine: checkpoint, engine, adapters, four tokenizers, three configurations, the
    manifest. Where there is an engine, its checkpoint and tokenizers go away before; the configurations always do."""
    return 3 + 4 + 3 + 1 + 3 + (5 if replaces else 0)


def served(repository: Path) -> dict[str, bytes]:
    """All that Triton would see of the repository's models."""
    return {path: text for path, text in contents(repository).items() if "/1/." not in path}


def consistent(repository: Path, before: dict[str, bytes]) -> None:
    """If the engine is there, all that belongs to it is, and of the same build."""
    engine = repository / "tensorrt_llm_small" / "1"
    if not engine.is_dir():
        assert "tensorrt_llm_small" not in served_names(repository)
        return
    now = served(repository)
    if load_manifest(engine).model_name != "new":
        assert now == before
        return
    for path in ("tensorrt_llm_small/1/tokenizer", "preprocessing_small/1/tokenizer", "openai_bls/1/tokenizer_small"):
        assert now[f"{path}/tokenizer.json"] == b"new"


def test_remove(source: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(repository)
    run(source, repository, engine="null", name="small")
    run(source, repository, engine="null", name="smaller", served_model_name="other")
    other = {path for path in contents(repository) if "smaller" in path}
    where = ["--model-repository", str(repository), "--remove", "small"]
    assert build_main(where) == 0
    after = contents(repository)
    assert set(after) == set(before) | other
    assert served_names(repository) == {"tensorrt_llm": ["openai_bls"], "tensorrt_llm_smaller": ["other"]}
    assert build_main(where) == 2
    assert "engine small" in capsys.readouterr().err


@pytest.mark.parametrize("moves", range(4))
def test_a_removal_cut_short(source: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, moves: int) -> None:
    """The engine goes first; asked again, the rest goes; a build in its place starts afresh."""
    before = contents(repository)
    run(source, repository, engine="null", name="small")
    with_engine = contents(repository)
    with renames(monkeypatch, at_most=moves):
        remove(repository, "small", print)
    assert (repository / "tensorrt_llm_small").exists() == (moves == 0)
    if moves in (0, 1, 2):
        remove(repository, "small", print)
        assert contents(repository) == before
    run(source, repository, engine="null", name="small")
    assert set(contents(repository)) == set(with_engine)


def test_the_folder_of_a_draft_model_of_an_older_release_goes(source: Path, repository: Path) -> None:
    run(source, repository, engine="null")
    (repository / "tensorrt_llm" / "1" / "draft").mkdir()
    run(source, repository, engine="null", max_model_len=32)
    assert not (repository / "tensorrt_llm" / "1" / "draft").exists()
