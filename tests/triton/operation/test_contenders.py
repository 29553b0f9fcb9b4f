"""The contenders of `benchmarks.serve_layer` on the real server: a whole run of the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.serve_layer import __main__ as serve_layer

pytestmark = pytest.mark.triton


def test_the_command(repository: Path, tmp_path: Path) -> None:
    """Every stage once, as short as it gets: nothing fails, and every stage has been measured."""
    options = [
        "--quick",
        "--contenders",
        "bare,ensemble,ours",
        "--concurrency",
        "4",
        "--seconds",
        "0.2",
        "--crowd",
        "20",
    ]
    options += ["--paced-concurrency", "4", "--repository", str(repository)]
    options += ["--singles", "2", "--output-tokens", "16"]
    assert serve_layer.main([*options, "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "serve_layer.json").read_bytes())
    assert document["notes"] == []
    assert not any(cell["failed"] for cell in document["cells"])
    assert {cell["stage"] for cell in document["cells"]} == {"throughput", "crowd", "first token", "paced"}
