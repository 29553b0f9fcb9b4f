"""A GGUF file by llama.cpp behind the real server: answers of /v1, what is refused, and an engine that dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.launcher.testing import RunningServer, copy_models, run_server
from tests.triton.conftest import ROOT
from tests.triton.engines.test_engine_process import chat, post, worker
from tests.unit.builder.source.gguf_support import write_gguf
from tests.waiting import until
from tests_llama_cpp.engine.llama_cpp_support import needs_llama_cpp

pytestmark = [pytest.mark.triton, needs_llama_cpp]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("llama_cpp")
    copy_models(ROOT / "model_repository", folder / "models")
    file = write_gguf(folder / "tiny.gguf", weights="Q4_0", merged=True)
    build(BuildOptions(str(file), folder / "models", engine="llama_cpp", max_batch_size=4), print)
    with run_server(folder / "models") as running:
        yield running


def test_answers_and_refusals(server: RunningServer) -> None:
    answer: dict[str, Any] = chat(server, n=2, seed=3, temperature=0.7, logprobs=True, top_logprobs=2).json()
    assert [len(choice["logprobs"]["content"]) for choice in answer["choices"]] == [8, 8]
    again = chat(server, temperature=1, seed=3, response_format=JSON, max_tokens=30).json()
    assert again["choices"][0]["message"]["content"] in ('{"a": true}', '{"a": false}')
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    for path, body, param in (
        ("completions", {"prompt": "a", "echo": True, "logprobs": 1}, "logprobs"),
        ("chat/completions", {"messages": HI, "prediction": {"type": "content", "content": "a"}}, "prediction"),
        ("embeddings", {"input": "a"}, "model"),
    ):
        refused: httpx.Response = post(server, path, body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_a_killed_engine_comes_back(server: RunningServer) -> None:
    expected = chat(server).json()["choices"]
    os.kill(worker(server), signal.SIGKILL)
    until(lambda: chat(server).status_code == 200, patience_s=60.0)
    assert chat(server).json()["choices"] == expected


HI = [{"role": "user", "content": "Hi"}]
JSON = {
    "type": "json_schema",
    "json_schema": {
        "name": "a",
        "schema": {
            "type": "object",
            "properties": {"a": {"type": "boolean"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
