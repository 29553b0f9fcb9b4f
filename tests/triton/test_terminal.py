"""`openai-bls chat` and `openai-bls bench` as programs, against the real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from openai_bls.launcher.testing import RunningServer
from tests.triton.conftest import ANSWERED

pytestmark = pytest.mark.triton


def run(*words: str, said: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("OPENAI_API_KEY", "COLUMNS")}
    command = [sys.executable, "-m", "openai_bls", *words]
    return subprocess.run(command, input=said, capture_output=True, text=True, check=False, env=environment)


def test_chat_answers_standard_input(server: RunningServer) -> None:
    assert ANSWERED.messages is not None
    question = ANSWERED.messages[-1]["content"]
    done = run("chat", "--url", server.openai_url, "--temperature", "0", said=question)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ANSWERED.answer + "\n"


def test_chat_names_the_models_that_there_are(server: RunningServer) -> None:
    done = run("chat", "--url", server.openai_url, "--model", "other", said="Hello")
    assert done.returncode == 2
    assert "has no model 'other'; it serves " in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_bench_measures(server: RunningServer, tmp_path: Path) -> None:
    output, plot = tmp_path / "found.json", tmp_path / "found.svg"
    lengths = ["--prompt-tokens", "40", "--output-tokens", "8", "--requests", "6", "--concurrency", "1,4"]
    done = run("bench", "--url", server.openai_url, *lengths, "--output", str(output), "--plot", str(plot))
    assert (done.returncode, done.stderr) == (0, "")
    assert "TTFT" in done.stdout
    found = json.loads(output.read_text())
    for load in found["loads"]:
        assert (load["requests"], load["failed"], load["output_tokens"]) == (6, 0, 8.0)
        # Words of several tokens do not add up to every number.
        assert abs(load["prompt_tokens"] - 40) <= 8
        assert 0 < load["ttft_p50_ms"] <= load["ttft_p99_ms"]
        assert 0 < load["itl_p50_ms"] <= load["itl_p99_ms"]
    assert plot.read_text().startswith("<?xml")
