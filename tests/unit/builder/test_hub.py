"""Checkpoints from the hub: which of a repository's files are fetched."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

from openai_bls.builder.hub import find_source

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
