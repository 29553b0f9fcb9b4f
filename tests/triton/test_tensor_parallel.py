"""A server whose model two processes share, as two GPUs would."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from openai_bls.builder.build import build
from openai_bls.builder.recipe import BuildOptions
from openai_bls.launcher.stub_watch import stubs
from openai_bls.launcher.testing import copy_models, run_server
from tests.triton.conftest import CHECKPOINT, ROOT, SHORT_CHATS, Golden
from tests.triton.test_lifecycle import wait_for_health

pytestmark = pytest.mark.triton

MODELS = [f"--load-model={name}" for name in ("openai_bls", "preprocessing", "tensorrt_llm")]


def children(pid: int) -> list[int]:
    """Process ids of the children of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


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
        wait_for_health(server, "tensorrt_llm has died")
