"""Checkpoints from the hub: which of a repository's files are fetched."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

from openai_bls.builder.hub import fetch_config, find_source
from openai_bls.core.manifest import EngineLoadError

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

    def download(model: str, allow_patterns: list[str]) -> str:
        assert model == "someone/model"
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
    with pytest.raises(EngineLoadError) as caught:
        find_source(model, print)
    assert str(caught.value).startswith(said.format(here=tmp_path))


def test_an_adapter_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *args, **kwargs: str(tmp_path))
    with pytest.raises(EngineLoadError, match=r"is an adapter .* of org/base"):
        find_source("org/adapter", lambda line: None)


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: object, **kwargs: object) -> None:
        raise ConnectionError("Name or service not known\nand a traceback")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    for ask in (lambda: find_source("org/name", print), lambda: fetch_config("org/name")):
        with pytest.raises(EngineLoadError) as caught:
            ask()
        said = str(caught.value)
        assert "\n" not in said
        assert "(Name or service not known): without a network give a directory, or set HF_HUB_OFFLINE=1" in said
        assert caught.value.__suppress_context__


def test_a_gguf_file_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its path; without one a repository of such files is refused with the hint."""
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda repository, file: f"/{repository}/{file}")
    assert find_source("someone/model/q4/model.gguf", print) == Path("/someone/model/q4/model.gguf")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(EngineLoadError, match=r"give one of them: someone/model/NAME\.gguf"):
        find_source("someone/model", print)
