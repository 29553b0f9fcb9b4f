"""A server whose model two processes share, as two GPUs would."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from openai_bls.builder.build import build
from openai_bls.builder.recipe import BuildOptions
from openai_bls.launcher.stub_watch import stubs
from openai_bls.launcher.testing import copy_models, run_server
from tests.triton.conftest import CHECKPOINT, ROOT, SHORT_CHATS, Golden

pytestmark = pytest.mark.triton

MODELS = [f"--load-model={name}" for name in ("openai_bls", "preprocessing", "tensorrt_llm")]


def children(pid: int) -> list[int]:
    """Process ids of the children of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def wait_for_end(pid: int) -> None:
    """Until a process runs no more; nobody may have taken note of its end."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} runs still")


def test_two_ranks(tmp_path: Path) -> None:
    """Golden answers, all at once; then a rank is killed: the model's process ends, which is what the launcher sees."""
    repository = tmp_path / "model_repository"
    copy_models(ROOT / "model_repository", repository)
    asked = BuildOptions(str(CHECKPOINT), repository, tensor_parallel_size=2, served_model_name="demo", self_test=False)
    assert build(asked, print).tensor_parallel_size == 2
    with run_server(repository, args=["--model-control-mode=explicit", *MODELS]) as server:
        with openai.OpenAI(base_url=server.openai_url, api_key="none") as client, ThreadPoolExecutor(12) as pool:

            def ask(golden: Golden) -> str | None:
                options: Any = {"messages": golden.messages, "temperature": 0, "max_tokens": 100}
                answer = client.chat.completions.create(model="demo", **options)
                content: str | None = answer.choices[0].message.content
                return content

            assert list(pool.map(ask, SHORT_CHATS)) == [golden.answer for golden in SHORT_CHATS]
        (stub,) = stubs(server.process.pid)["tensorrt_llm"]
        (rank,) = children(stub.pid)
        os.kill(rank, signal.SIGKILL)
        wait_for_end(stub.pid)
        health = httpx.get(f"{server.openai_url.removesuffix('/v1')}/health")
        assert (health.status_code, health.json()["models"]["tensorrt_llm"]) == (503, "lost")
