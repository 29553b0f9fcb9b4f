"""`openai-bls chat` as a program, against the real server."""

from __future__ import annotations

import os
import subprocess
import sys

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
