"""A TensorRT-LLM engine behind the real server: built and run over the fake package, which computes with transformers.

What the fake stands for, and what of the real TensorRT-LLM it cannot stand for, is told in the README.md of
tests_tensorrt_llm/fakes.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from openai_bls.launcher.testing import RunningServer, ServerFailedError, copy_models, run_server
from tests.triton.conftest import CHATS, CHECKPOINT, ROOT
from tests.unit.builder.builds import build_main
from tests_tensorrt_llm.engine.fake_support import FAKES, PACKAGE, patched

pytestmark = pytest.mark.triton

# Short ones: the fake takes one forward pass a token, and here one sequence at a time.
GOLDENS = sorted(CHATS, key=lambda golden: golden.tokens)[:4]
SKY: Any = [{"role": "user", "content": "What colour is the sky?"}]
ANSWER = "The sky is blue because air scatters blue light more than red light."
ONE_MODEL = ("--model-control-mode=explicit", "--load-model=tensorrt_llm")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What makes this a machine with TensorRT-LLM 1.2.1 and an H100: environment variables."""
    # This Python stays the first, for the stub goes by that.
    folders = [str(Path(sys.executable).parent), str(FAKES / "bin"), os.environ["PATH"]]
    return {
        "PATH": os.pathsep.join(folders),
        "PYTHONPATH": str(PACKAGE),
        "FAKE_TENSORRT_LLM_CALLS": str(tmp_path_factory.mktemp("machine") / "calls"),
        # A stream of 2,000 tokens lasts 20 seconds.
        "FAKE_TENSORRT_LLM_STEP_DELAY_MS": "10",
    }


@pytest.fixture(scope="module")
def trtllm_repository(machine: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of this repository with a TensorRT engine of the demo checkpoint, for one sequence at a time."""
    target = tmp_path_factory.mktemp("repository") / "model_repository"
    copy_models(ROOT / "model_repository", target)
    options = ["--engine", "tensorrt_llm", "--max-batch-size", "1", "--gather-logits"]
    options += ["--guided-decoding-backend", "xgrammar"]
    with patched(os.environ | machine):
        assert build_main(["--model", str(CHECKPOINT), "--model-repository", str(target), *options]) == 0
    # The wheel's stub passes PYTHONPATH over; a model's own folder is on its path.
    (target / "tensorrt_llm" / "1" / "tensorrt_llm").symlink_to(PACKAGE / "tensorrt_llm")
    return target


@pytest.fixture(scope="module")
def trtllm_server(trtllm_repository: Path, machine: dict[str, str]) -> Iterator[RunningServer]:
    with run_server(trtllm_repository, env=machine) as running:
        yield running


@pytest.fixture(scope="module")
def trtllm_client(trtllm_server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=trtllm_server.openai_url, api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, messages: Any = SKY, **more: Any) -> Any:
    return client.chat.completions.create(
        model="openai_bls", messages=messages, **({"temperature": 0, "max_tokens": 400} | more)
    )


def test_golden_answers(trtllm_client: openai.OpenAI) -> None:
    """Whole and streamed."""
    for golden in GOLDENS:
        answer = ask(trtllm_client, golden.messages)
        assert answer.choices[0].message.content == golden.answer
        assert answer.choices[0].finish_reason == golden.finish
        assert answer.usage.completion_tokens == golden.tokens
        chunks = [chunk.choices[0] for chunk in ask(trtllm_client, golden.messages, stream=True)]
        assert "".join(chunk.delta.content or "" for chunk in chunks) == golden.answer
        assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == [golden.finish]


def test_structured_output(trtllm_client: openai.OpenAI) -> None:
    """A JSON object that is whole, though the model would rather end its answer in the middle of a string."""
    for messages in (SKY, CHATS[0].messages, CHATS[5].messages):
        answer = ask(trtllm_client, messages, max_tokens=200, response_format={"type": "json_object"}).choices[0]
        if answer.finish_reason == "stop":
            assert isinstance(json.loads(answer.message.content), dict)
        else:
            assert answer.finish_reason == "length"
    colours = ["red", "sky blue"]
    answer = ask(trtllm_client, max_tokens=20, extra_body={"guided_choice": colours}).choices[0]
    assert (answer.message.content in colours, answer.finish_reason) == (True, "stop")
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    answer = ask(trtllm_client, max_tokens=100, response_format=wanted, temperature=1, seed=1).choices[0]
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content)["n"], int)


def test_what_it_cannot_do_is_refused_by_name(trtllm_client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="'echo'") as refused:
        trtllm_client.completions.create(model="openai_bls", prompt="a", echo=True, logprobs=1, max_tokens=2)
    assert refused.value.param == "logprobs"
    with pytest.raises(openai.BadRequestError, match="no embeddings"):
        trtllm_client.embeddings.create(model="openai_bls", input="a")
    # The demo has two end tokens, of which TensorRT-LLM holds back one.
    with pytest.raises(openai.BadRequestError, match="min_tokens"):
        ask(trtllm_client, extra_body={"min_tokens": 5})


def test_a_client_that_goes_away_frees_its_place(trtllm_server: RunningServer) -> None:
    """There is one place: what comes next is answered only if TensorRT-LLM was told to abort."""
    endless = {"messages": SKY, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{trtllm_server.openai_url}/chat/completions", json=endless, timeout=60) as response:
        next(response.iter_bytes())
    with openai.OpenAI(base_url=trtllm_server.openai_url, api_key="none", max_retries=0, timeout=15) as client:
        assert ask(client).choices[0].message.content == ANSWER


def test_an_engine_of_another_version_is_refused(trtllm_repository: Path, machine: dict[str, str]) -> None:
    """The server ends by itself, without a crash, and says why. Every reason has a unit test."""
    env = {**machine, "FAKE_TENSORRT_LLM_VERSION": "1.1.0"}
    with pytest.raises(ServerFailedError) as caught, run_server(trtllm_repository, env, ONE_MODEL, wait_openai=False):
        pass
    assert "tritonserver ended with code 1" in str(caught.value)
    assert re.search(r"TensorRT-LLM 1\.2\.1, .* 1\.1\.0", str(caught.value))
