"""The contenders of `benchmarks.serve_layer` on the real server: a whole run of the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import serve_layer, stages

pytestmark = pytest.mark.triton


def test_the_command(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stage once, as short as it gets: nothing fails, and what is judged has been measured."""
    monkeypatch.setattr(stages, "_PROMPTS", 1)
    options = ["--quick", "--contenders", "bare,ensemble,ours", "--concurrency", "4", "--seconds", "0.2"]
    options += ["--crowd", "20", "--paced-concurrency", "4", "--long-prompt-tokens", "4000"]
    options += ["--repository", str(repository), "--singles", "2", "--output-tokens", "16"]
    assert serve_layer.main([*options, "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "serve_layer.json").read_bytes())
    assert document["notes"] == []
    assert not any(cell["failed"] for cell in document["cells"])
    assert {cell["stage"] for cell in document["cells"]} == {"throughput", "crowd", "first token", "paced"}
    [beside] = document["long_prompts"]
    assert beside["failures"] == {}
    assert beside["prompt_tokens"] > 3_000
