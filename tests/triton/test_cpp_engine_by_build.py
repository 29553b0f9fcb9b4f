"""What `build/engine.py --backend cpp` writes, served as it is: no file of the repository is changed after the build.

Triton takes a folder of backends in which a `model.py` stands for a backend (a "Python-based backend"). So a folder
`tensorrtllm` with the stand-in of tests/triton/cpp_backend takes the place of NVIDIA's C++ backend under its own name:
the config.pbtxt files, the ensembles and the choice of openai_bls between its two ways to the engine are the real ones.
"""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from openai_bls.launcher.server import backends_folder, find_server
from openai_bls.launcher.testing import RunningServer, copy_models, run_server
from tests.triton import cpp_backend, triton_client
from tests.triton.conftest import CHATS, CHECKPOINT, ROOT
from tests.unit.engines.tensorrt_llm.fake_support import environment

pytestmark = pytest.mark.triton

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 400}
GOLDENS = sorted(CHATS, key=lambda golden: golden.tokens)[:8]
ENGLISH = next(golden for golden in GOLDENS if golden.answer.isascii())
SERVED = {"cpp": "tensorrt_llm", "beside": "tensorrt_llm_beside"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A C++ engine built over the fake TensorRT-LLM, and an embedded one beside it."""
    target = tmp_path_factory.mktemp("cpp_engine") / "model_repository"
    copy_models(ROOT / "model_repository", target)
    build = [sys.executable, str(ROOT / "build" / "engine.py")]
    build += ["--model", str(CHECKPOINT), "--model-repository", str(target)]
    subprocess.run(
        [
            *(*build, "--engine", "tensorrt_llm", "--backend", "cpp", "--served-model-name", "cpp"),
            *("--max-batch-size", "4", "--guided-decoding-backend", "xgrammar", "--max-queue-delay", "100"),
        ],
        check=True,
        env=environment(),
    )
    subprocess.run(
        [*build, "--engine", "transformers", "--name", "beside", "--served-model-name", "beside"], check=True
    )
    return target


@pytest.fixture(scope="module")
def server(built: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The server over `built`, with the stand-in as the backend `tensorrtllm`."""
    if find_server().kind != "wheel":
        pytest.skip("the folder of backends is assembled from the wheel's")
    # The stand-in's own engine, which is nobody else's business.
    shutil.copytree(
        repository / "tensorrt_llm" / "1",
        built / "tensorrt_llm" / "1" / cpp_backend.STAND_IN,
        ignore=shutil.ignore_patterns("*.py", "__pycache__"),
    )
    backends = tmp_path_factory.mktemp("backends")
    # Triton refuses a backend whose library is a link to another folder, where it stands behind a Python-based one.
    shutil.copytree(backends_folder() / "python", backends / "python", ignore=shutil.ignore_patterns("__pycache__"))
    (backends / "tensorrtllm").mkdir()
    shutil.copy(Path(cpp_backend.__file__).with_name("model.py"), backends / "tensorrtllm")
    with run_server(built, args=[f"--backend-directory={backends}"]) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.openai_url, api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, messages: Any, model: str = "cpp", **more: Any) -> Any:
    return client.chat.completions.create(model=model, messages=messages, **(GREEDY | more))


def requests_of(server: RunningServer, model: str) -> int:
    """How many requests Triton itself has given to `model`."""
    page = httpx.get(f"{server.http_url}/v2/models/{model}/stats").raise_for_status().json()
    return int(page["model_stats"][0]["inference_stats"]["success"]["count"])


def test_it_is_the_backend_by_its_own_name(server: RunningServer) -> None:
    config = httpx.get(f"{server.http_url}/v2/models/tensorrt_llm/config").raise_for_status().json()
    assert config["backend"] == "tensorrtllm"
    assert {item["name"]: item["dims"] for item in config["output"]}["output_ids"] == [-1, -1]
    assert Path(config["parameters"]["gpt_model_path"]["string_value"], "rank0.engine").is_file()


def test_openai_bls_goes_by_the_name(server: RunningServer, client: openai.OpenAI) -> None:
    """Requests to the C++ engine are Triton requests; those to our own model.py go round Triton."""
    before = {model: requests_of(server, folder) for model, folder in SERVED.items()}
    for model in SERVED:
        assert ask(client, ENGLISH.messages, model).choices[0].message.content == ENGLISH.answer
    assert requests_of(server, SERVED["cpp"]) > before["cpp"]
    assert requests_of(server, SERVED["beside"]) == before["beside"]


def test_both_engines_answer_at_the_same_time(client: openai.OpenAI) -> None:
    def streamed(golden: Any, model: str) -> str:
        chunks = ask(client, golden.messages, model, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    work = [(golden, model) for golden in GOLDENS for model in SERVED]
    with concurrent.futures.ThreadPoolExecutor(len(work)) as pool:
        for text, (golden, _) in zip(pool.map(lambda item: streamed(*item), work), work, strict=True):
            assert text == golden.answer


def test_a_schema_is_held_to(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}, "warm": {"type": "boolean"}},
        "required": ["colour", "warm"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    answer = ask(client, ENGLISH.messages, response_format=wanted)
    found = json.loads(answer.choices[0].message.content)
    assert found["colour"] in ("red", "blue")
    assert isinstance(found["warm"], bool)


@pytest.mark.parametrize("ensemble", ["ensemble", "tensorrt_llm_bls"])
def test_the_ensembles_around_it(server: RunningServer, ensemble: str) -> None:
    messages: Any = ENGLISH.messages
    prompt = f"<|im_start|>user\n{messages[-1]['content']}<|im_end|>\n<|im_start|>assistant\n"
    body = {"text_input": prompt, "max_tokens": 60, "stream": True}
    events = list(triton_client.generate_stream(server.http_url, ensemble, body))
    assert len(events) > 1
    assert "".join(event["text_output"] for event in events) == ENGLISH.answer


def test_what_the_backend_does_not_have_is_refused_by_name(server: RunningServer) -> None:
    body = {"messages": json.dumps(ENGLISH.messages), "model": "cpp", "min_p": 0.5}
    with pytest.raises(triton_client.TritonError, match="min_p"):
        triton_client.chat(server.http_url, body)
