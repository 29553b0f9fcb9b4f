"""An engine for TensorRT-LLM's C++ backend: made by the build, loaded by Triton by the backend's name, served.

Triton takes a folder of backends in which a `model.py` stands for a backend (a "Python-based backend"). So a folder
`tensorrtllm` with the stand-in of tests/triton/engines/cpp_backend takes the place of NVIDIA's C++ backend under its
own name: the config.pbtxt files, the ensembles and the choice of openai_bls between its two ways to the engine are the
real ones.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import tokenizers

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.launcher.testing import RunningServer, copy_models, run_server
from openai_bls.launcher.tritonserver.command import backends_folder, find_server
from openai_bls.launcher.tritonserver.ports import lease_ports
from openai_bls.triton_models.repository.render_configs import configure
from tests.triton import triton_client
from tests.triton.api.test_tool_choice import PAINT, check_calls_that_must_come
from tests.triton.conftest import ANSWERED, CHECKPOINT, RAW, ROOT, SHORT_CHATS, Golden
from tests.triton.conversations import HELLO, QUESTION
from tests.triton.engines.test_ranks import Ranks, end
from tests.unit.builder.builds import build_main
from tests.waiting import Streams, until
from tests_tensorrt_llm.engine.fake_support import environment, patched

pytestmark = pytest.mark.triton

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 1200}
ENDLESS: dict[str, Any] = {"messages": HELLO, "max_tokens": 1500, "ignore_eos": True, "stream": True}
# It echoes its prompt, or goes on for as long as it may, at a steady pace.
SLOW_NULL = {"OPENAI_BLS_ENGINE": "null", "OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS": "20"}


SERVED = {"cpp": "tensorrt_llm", "beside": "tensorrt_llm_beside"}
# As tests/triton/engines/cpp_backend/model.py has it.
STAND_IN = "stand_in"


@pytest.fixture(scope="module")
def cpp_repository(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A C++ engine built over the fake TensorRT-LLM, and an embedded one beside it."""
    target = tmp_path_factory.mktemp("cpp_engine") / "model_repository"
    copy_models(ROOT / "model_repository", target)
    options = ["--engine", "tensorrt_llm", "--backend", "cpp", "--served-model-name", "cpp", "--max-batch-size", "4"]
    options += ["--guided-decoding-backend", "xgrammar", "--max-queue-delay", "100"]
    # What it answers is nobody's business: the stand-in has an engine of its own.
    with patched(environment(tokens="5")):
        assert build_main(["--model", str(CHECKPOINT), "--model-repository", str(target), *options]) == 0
    beside = BuildOptions(
        str(CHECKPOINT), target, "transformers", name="beside", served_model_name="beside", self_test=False
    )
    build(beside, print)
    # The stand-in's own engine.
    shutil.copytree(
        repository / "tensorrt_llm" / "1",
        target / "tensorrt_llm" / "1" / STAND_IN,
        ignore=shutil.ignore_patterns("*.py", "__pycache__"),
    )
    return target


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The flag for a folder of backends with the stand-in as `tensorrtllm`."""
    if find_server().kind != "wheel":
        pytest.skip("the folder of backends is assembled from the wheel's")
    folder = tmp_path_factory.mktemp("backends")
    # Triton refuses a backend whose library is a link to another folder, where it stands behind a Python-based one.
    shutil.copytree(backends_folder() / "python", folder / "python", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tensorrtllm").mkdir()
    shutil.copy(Path(__file__).with_name("cpp_backend") / "model.py", folder / "tensorrtllm")
    return f"--backend-directory={folder}"


@pytest.fixture(scope="module")
def cpp_server(cpp_repository: Path, backends: str) -> Iterator[RunningServer]:
    with run_server(cpp_repository, args=[backends]) as running:
        yield running
        log = running.log_path.read_text(encoding="utf-8")
    assert "broke off" not in log


@pytest.fixture(scope="module")
def cpp_client(cpp_server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=cpp_server.openai_url, api_key="none", max_retries=0) as client:
        yield client


def requests_of(server: RunningServer, model: str) -> int:
    """How many requests Triton itself has given to `model`."""
    page = httpx.get(f"{server.http_url}/v2/models/{model}/stats").raise_for_status().json()
    return int(page["model_stats"][0]["inference_stats"]["success"]["count"])


def test_it_is_the_backend_by_its_own_name(cpp_server: RunningServer, cpp_client: openai.OpenAI) -> None:
    """Requests to the C++ engine are Triton requests; those to our own model.py go round Triton."""
    config = httpx.get(f"{cpp_server.http_url}/v2/models/tensorrt_llm/config").raise_for_status().json()
    assert config["backend"] == "tensorrtllm"
    assert {item["name"]: item["dims"] for item in config["output"]}["output_ids"] == [-1, -1]
    assert Path(config["parameters"]["gpt_model_path"]["string_value"], "rank0.engine").is_file()
    before = {model: requests_of(cpp_server, folder) for model, folder in SERVED.items()}
    for model in SERVED:
        answer = cpp_client.chat.completions.create(model=model, messages=QUESTION, **GREEDY)
        assert answer.choices[0].message.content == ANSWERED.answer
    assert requests_of(cpp_server, SERVED["cpp"]) > before["cpp"]
    assert requests_of(cpp_server, SERVED["beside"]) == before["beside"]


def ways(server: RunningServer, client: openai.OpenAI, golden: Golden) -> Iterator[Callable[[], Any]]:
    """Every path to the text of a golden answer."""
    if golden.raw is not None:
        raw: dict[str, Any] = {"model": "cpp", "prompt": golden.raw, **GREEDY}
        yield lambda: client.completions.create(**raw).choices[0].text
        yield lambda: "".join(chunk.choices[0].text for chunk in client.completions.create(**raw, stream=True))
        yield lambda: triton_client.content(triton_client.chat_stream(server.http_url, raw))
        return
    messages: Any = golden.messages
    request: dict[str, Any] = {"model": "cpp", "messages": messages, **GREEDY}
    body = {**request, "messages": json.dumps(messages)}
    inputs = [triton_client.infer_input("messages", [json.dumps(m) for m in messages], "BYTES")]
    yield lambda: client.chat.completions.create(**request).choices[0].message.content
    yield lambda: "".join(
        chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**request, stream=True)
    )
    yield lambda: triton_client.chat(server.http_url, body)["choices"][0]["message"]["content"]
    yield lambda: triton_client.content(triton_client.chat_stream(server.http_url, body))
    yield lambda: triton_client.content(triton_client.grpc_chat(server.grpc_url, inputs, {"stream": True, **GREEDY}))


def beside(client: openai.OpenAI, golden: Golden) -> Any:
    messages: Any = golden.messages
    stream = client.chat.completions.create(model="beside", messages=messages, stream=True, **GREEDY)
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def test_golden_answers_on_every_path_sixty_four_at_once(cpp_server: RunningServer, cpp_client: openai.OpenAI) -> None:
    goldens = [*SHORT_CHATS, *RAW[:12]]
    work = [(way, golden) for golden in goldens for way in ways(cpp_server, cpp_client, golden)]
    # The engine beside it works at the same time.
    work += [(partial(beside, cpp_client, golden), golden) for golden in goldens if golden.messages][:8]
    assert len(work) > 64
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        for text, (_, golden) in zip(pool.map(lambda item: item[0](), work), work, strict=True):
            assert text == golden.answer


def test_usage_and_finish_reason(cpp_client: openai.OpenAI) -> None:
    """The end token, which the backend does not send, counts."""
    for options, reason, tokens in (
        (GREEDY, "stop", ANSWERED.tokens),
        ({"temperature": 0, "max_tokens": 3}, "length", 3),
    ):
        answer = cpp_client.chat.completions.create(model="cpp", messages=QUESTION, **options)
        assert answer.choices[0].finish_reason == reason
        assert answer.usage is not None
        assert answer.usage.completion_tokens == tokens


def test_a_stop_string_ends_the_engines_work(cpp_client: openai.OpenAI, cpp_server: RunningServer) -> None:
    # It goes on for long after the stop string, or it might be at its end before it is told.
    before = stops(cpp_server)
    request: dict[str, Any] = {"model": "cpp", "messages": HELLO, "stop": ["Bels"], **GREEDY}
    request["extra_body"] = {"ignore_eos": True}
    whole = cpp_client.chat.completions.create(**request)
    assert whole.choices[0].message.content == "Hello! 👋 I am "
    assert whole.choices[0].finish_reason == "stop"
    stream = cpp_client.chat.completions.create(**request, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Hello! 👋 I am "
    until(lambda: stops(cpp_server) >= before + 2)


def test_several_answers_differ_and_repeat_with_a_seed(cpp_client: openai.OpenAI) -> None:
    def texts(**more: Any) -> list[str]:
        answer = cpp_client.completions.create(
            model="cpp", prompt="a", n=8, max_tokens=48, temperature=2, extra_body={"ignore_eos": True}, **more
        )
        return [choice.text for choice in answer.choices]

    first = texts()
    assert len(set(first)) > 1, "all have the backend's own seed"
    assert texts() != first
    assert texts(seed=5) == texts(seed=5)


def test_log_probs(cpp_client: openai.OpenAI) -> None:
    """The same, for as many tokens, as from the engine beside it, over the exchange."""
    values = []
    for model in SERVED:
        for stream in (False, True):
            options: dict[str, Any] = {"model": model, "messages": HELLO, "logprobs": True, "stream": stream, **GREEDY}
            found: Any = cpp_client.chat.completions.create(**options)
            choices = [chunk.choices[0] for chunk in ([found] if not stream else found)]
            entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content or ()]
            assert all(entry.top_logprobs == [] for entry in entries)
            values.append([(entry.token, pytest.approx(entry.logprob, abs=1e-4)) for entry in entries])
    assert len(values[0]) > 10
    assert all(found == values[0] for found in values)


def test_tool_calls_that_must_come(cpp_client: openai.OpenAI) -> None:
    """As a JSON array; streamed they are the same."""
    # Of enumerations alone: the demo model was not taught this form, and finds no end to a string in it.
    check_calls_that_must_come(cpp_client, tools=[PAINT], parallel_tool_calls=False)


@pytest.mark.parametrize("ensemble", ["ensemble", "tensorrt_llm_bls"])
def test_the_ensembles_around_it(cpp_server: RunningServer, ensemble: str) -> None:
    prompt = f"<|im_start|>user\n{QUESTION[-1]['content']}<|im_end|>\n<|im_start|>assistant\n"
    body = {"text_input": prompt, "max_tokens": 60, "stream": True}
    events = list(triton_client.generate_stream(cpp_server.http_url, ensemble, body))
    assert len(events) > 1
    assert "".join(event["text_output"] for event in events) == ANSWERED.answer
    # A step refuses what is missing, and no client waits for it.
    for missing in ("text_input", "max_tokens"):
        rest = {name: value for name, value in body.items() if name != missing}
        with pytest.raises(triton_client.TritonError, match=f"'{missing}'"):
            list(triton_client.generate_stream(cpp_server.http_url, ensemble, rest))


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_logits_of_a_request(cpp_server: RunningServer, model: str) -> None:
    """Through the ensemble's tensors, in the official shapes; without asking there are none."""
    body: dict[str, Any] = {"text_input": "Hello", "max_tokens": 3, "exclude_input_in_output": True}
    url = f"{cpp_server.http_url}/v2/models/{model}/generate"
    plain = httpx.post(url, json=body, timeout=60).raise_for_status().json()
    assert not [name for name in plain if name.endswith("_logits")]
    asked = {"return_context_logits": True, "return_generation_logits": True}
    found = httpx.post(url, json=body | asked, timeout=60).raise_for_status().json()
    assert found["text_output"] == plain["text_output"]
    vocabulary = len(found["generation_logits"]) // 3
    rows = np.array(found["generation_logits"]).reshape(3, vocabulary)
    tokenizer = tokenizers.Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    assert tokenizer.decode(rows.argmax(axis=1).tolist()) == found["text_output"]
    prompt = np.array(found["context_logits"]).reshape(-1, vocabulary)
    assert prompt.argmax(axis=1).tolist() == tokenizer.encode("Hello").ids


def test_two_instances_under_an_orchestrator(
    cpp_repository: Path, backends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Composed by `render` and `serve`, as far as the stand-in goes: both take requests, and answers are whole."""
    repository = shutil.copytree(cpp_repository, tmp_path / "models")
    configure(repository, ["tensorrt_llm.gpu_device_ids=0;1"])
    for name, value in SLOW_NULL.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    log = tmp_path / "log"
    with lease_ports() as leased, contextlib.ExitStack() as stack:
        ranks = Ranks(repository, leased, "--mode", "orchestrator", "--log-file", str(log), "--", backends)
        stack.callback(end, ranks)
        ranks.read_until(r"Listening: .*\n")
        assert "TRTLLM_ORCHESTRATOR=1" in ranks.of(ranks.server(0), "environ")
        body = {"prompt": "a b c", "max_tokens": 20, "ignore_eos": True}
        url = f"http://127.0.0.1:{ranks.ports.openai}/v1/completions"
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: httpx.post(url, json=body, timeout=60).json(), range(8)))
        assert {answer["usage"]["completion_tokens"] for answer in answers} == {20}
        assert len({answer["choices"][0]["text"] for answer in answers}) == 1
        ranks.process.send_signal(signal.SIGINT)
        assert ranks.finish() == 0
    taken = [int(count) for count in re.findall(r"the stand-in took (\d+) requests", log.read_text(encoding="utf-8"))]
    assert len(taken) == 2
    assert min(taken) > 0
    assert sum(taken) == 8


def test_gone_clients_an_unload_and_the_exit_timeout(cpp_repository: Path, backends: str) -> None:
    """What runs goes on to its end, what comes meanwhile is told, and the engine is found again."""
    arguments = [backends, "--model-control-mode=explicit", "--load-model=*", "--exit-timeout-secs=6"]
    with run_server(cpp_repository, env=SLOW_NULL, args=arguments) as server:
        for url, body in (
            (f"{server.openai_url}/chat/completions", ENDLESS),
            (f"{server.http_url}/v2/models/openai_bls/generate_stream", {**ENDLESS, "messages": json.dumps(HELLO)}),
        ):
            before = stops(server)
            with httpx.stream("POST", url, json=body, timeout=60) as response:
                next(response.iter_bytes())
            # 1,500 tokens would take 30 seconds.
            until(lambda before=before: stops(server) == before + 1)  # type: ignore[misc]
        control = f"{server.http_url}/v2/repository/models/tensorrt_llm"
        streams = Streams(server, 2, 50)
        assert httpx.post(f"{control}/unload", timeout=60).status_code == 200
        streams.finish()
        request = {"prompt": "a", "max_tokens": 2}
        assert httpx.post(f"{server.openai_url}/completions", json=request, timeout=60).status_code == 503
        assert httpx.post(f"{control}/load", timeout=60).status_code == 200
        assert httpx.post(f"{server.openai_url}/completions", json=request, timeout=60).status_code == 200
        endless, streams = Streams(server, 1, 1500), Streams(server, 15, 100)
        server.process.drain()
        streams.finish()
        # Then tritonserver ends at once: the last event goes out, unless the process that has it is ended before.
        try:
            (received,) = endless.ends()
        except httpx.RemoteProtocolError:
            pass
        else:
            assert b'"error":{' in received
            assert received.endswith(b"data: [DONE]\n\n")
        server.process.wait(60)
        assert server.process.leftovers() == []


def stops(server: RunningServer) -> int:
    """Stop requests that the stand-in has had."""
    return len(re.findall(r'"stop of openai_bls-', server.log_path.read_text(encoding="utf-8")))
