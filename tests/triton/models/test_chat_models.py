"""Chat models of users on a real server, with models that do what a test tells them."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from openai_bls.launcher.testing import RunningServer, run_server
from tests.triton import triton_client
from tests.triton.conftest import ROOT
from tests.triton.metrics import find, scrape
from tests.waiting import until

pytestmark = pytest.mark.triton

WHOLE = ("whole_0", "whole_1", "whole_2")
STREAMING = "streaming"
WAIT_S = 60.0


def write_model(repository: Path, name: str, *, decoupled: bool = False, **parameters: str) -> None:
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    shutil.copy(Path(__file__).parent / "chat_models" / "model.py", folder)
    lines = [
        'backend: "python"',
        f"model_transaction_policy {{ decoupled: {str(decoupled).lower()} }}",
        'input [ { name: "request" data_type: TYPE_STRING dims: [ 1 ] } ]',
        'output [ { name: "response" data_type: TYPE_STRING dims: [ 1 ] } ]',
    ]
    for key, value in {"openai_task": "chat", **parameters}.items():
        lines.append(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}')
    (repository / name / "config.pbtxt").write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def chat_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("chat_models")
    for name in WHOLE:
        write_model(models, name)
    write_model(models, STREAMING, decoupled=True)
    write_model(models, "hurried", decoupled=True, openai_timeout_s="0.3")
    shutil.copytree(ROOT / "examples" / "embedding", models / "embedding")
    return models


@pytest.fixture(scope="module")
def chat_server(repository: Path, chat_models: Path) -> Iterator[RunningServer]:
    args = [f"--model-repository={chat_models}", "--model-control-mode=explicit", "--load-model=*"]
    with run_server(
        repository, args=args, env={"OPENAI_BLS_ENGINE": "null", "OPENAI_BLS_KEEP_ALIVE_INTERVAL_S": "0.2"}
    ) as running:
        yield running


@pytest.fixture(scope="module")
def sdk(chat_server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=chat_server.openai_url, api_key="none", max_retries=0, timeout=WAIT_S) as client:
        # The first request for a chat model looks for it, if nobody has yet.
        ask(client, STREAMING, do="echo")
        yield client


def task(**do: Any) -> Any:
    return [{"role": "user", "content": json.dumps(do)}]


def ask(sdk: openai.OpenAI, model: str, **do: Any) -> Any:
    return sdk.chat.completions.create(model=model, messages=task(**do))


@pytest.mark.parametrize("model", [WHOLE[0], STREAMING])
def test_requests_pass_as_they_are(sdk: openai.OpenAI, model: str) -> None:
    further = {"index": {"name": "docs", "weights": [1.5, None]}}
    answer: Any = sdk.chat.completions.create(
        model=model, messages=task(do="echo"), temperature=0.5, extra_body=further
    )
    assert answer.seen == {"model": model, "messages": task(do="echo"), "temperature": 0.5, "stream": False, **further}
    assert (answer.choices[0].message.content, answer.usage.total_tokens) == ("echo", 7)


def test_streams(sdk: openai.OpenAI) -> None:
    contents = ["Pa", "ris", " é 中\n"]
    stream = sdk.chat.completions.create(model=STREAMING, messages=task(do="chunks", contents=contents), stream=True)
    *texts, last = [chunk.choices[0] for chunk in stream]
    assert [choice.delta.content for choice in texts] == contents
    assert last.finish_reason == "stop"
    # The model answers once, so its answer comes in chunks.
    whole = sdk.chat.completions.create(
        model=WHOLE[0], messages=task(do="echo"), stream=True, stream_options={"include_usage": True}
    )
    role, text, finish, usage = whole
    assert (role.choices[0].delta.role, text.choices[0].delta.content) == ("assistant", "echo")
    assert finish.choices[0].finish_reason == "stop"
    assert usage.usage is not None
    assert usage.usage.total_tokens == 7


def test_many_streams_side_by_side(sdk: openai.OpenAI) -> None:
    def run(number: int) -> str:
        contents = [f"{number}-{at} " for at in range(50)]
        stream = sdk.chat.completions.create(
            model=STREAMING, messages=task(do="chunks", contents=contents), stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(run, range(64)))
    assert found == ["".join(f"{number}-{at} " for at in range(50)) for number in range(64)]


def test_on_tritons_endpoints(sdk: openai.OpenAI, chat_server: RunningServer) -> None:
    body: dict[str, Any] = {"model": WHOLE[0], "messages": json.dumps(task(do="echo")), "index": "docs"}
    answer = triton_client.chat(chat_server.http_url, body)
    assert answer["seen"] == {"model": WHOLE[0], "messages": task(do="echo"), "index": "docs", "stream": False}
    body = {"model": STREAMING, "messages": json.dumps(task(do="chunks", contents=["a", "b"])), "stream": True}
    assert triton_client.content(triton_client.chat_stream(chat_server.http_url, body)) == "ab"
    request = json.dumps({"model": STREAMING, "messages": task(do="chunks", contents=["a", "b"]), "stream": True})
    inputs = [triton_client.infer_input("request", [request.encode()], "BYTES")]
    assert triton_client.content(triton_client.grpc_chat(chat_server.grpc_url, inputs, {})) == "ab"


@pytest.mark.parametrize("model", [WHOLE[0], STREAMING])
@pytest.mark.parametrize(
    ("do", "status", "message"),
    [
        ({"do": "error", "error": {"message": "off topic", "type": "invalid_request_error"}}, 400, "off topic"),
        ({"do": "error", "error": {"message": "slow down", "code": 429}}, 429, "slow down"),
        ({"do": "refuse"}, 500, "failed: no such index"),
        ({"do": "text", "text": "Paris"}, 502, "JSON"),
        ({"do": "text", "text": '{"choices": 1}'}, 502, "'choices'"),
    ],
)
def test_errors(sdk: openai.OpenAI, chat_server: RunningServer, model: str, do: Any, status: int, message: str) -> None:
    with pytest.raises(openai.APIStatusError, match=message) as caught:
        sdk.chat.completions.create(model=model, messages=task(**do))
    assert caught.value.status_code == status
    body = {"model": model, "messages": task(**do), "stream": True}
    streamed = httpx.post(f"{chat_server.openai_url}/chat/completions", json=body, timeout=WAIT_S)
    # On a busy machine a comment has to keep the stream open before the model answers.
    assert streamed.status_code == status or streamed.text.startswith(": keep-alive")
    assert message in streamed.text
    assert ask(sdk, model, do="echo").seen


def test_an_unforeseen_exception_and_a_model_that_says_nothing(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match=f"'{WHOLE[0]}'") as caught:
        ask(sdk, WHOLE[0], do="raise")
    assert "unforeseen" not in str(caught.value)
    for do in ("raise", "nothing"):
        with pytest.raises(openai.InternalServerError, match=f"'{STREAMING}'"):
            ask(sdk, STREAMING, do=do)
    with pytest.raises(openai.InternalServerError, match="'stream'"):
        ask(sdk, STREAMING, do="chunks", contents=["a"])


def test_they_are_listed_and_counted(sdk: openai.OpenAI, chat_server: RunningServer) -> None:
    cards = {card.id: (card.model_extra or {})["task"] for card in sdk.models.list()}
    assert {cards[name] for name in (*WHOLE, STREAMING)} == {"chat"}

    def counted(name: str, model: str, **labels: str) -> float:
        return find(scrape(chat_server), name, model=model, endpoint="chat.completions", **labels)

    def is_counted(model: str, requests: float) -> bool:
        return counted("requests_total", model, outcome="done") == requests

    for model in (WHOLE[1], STREAMING):
        before = counted("requests_total", model, outcome="done") if model == STREAMING else 0.0
        tokens = counted("generation_tokens_total", model) if model == STREAMING else 0.0
        ask(sdk, model, do="echo")
        until(partial(is_counted, model, before + 1))
        assert counted("generation_tokens_total", model) == tokens + 2


def test_the_deadline(sdk: openai.OpenAI, chat_models: Path) -> None:
    message = r"'hurried'.* 0\.3 s"
    with pytest.raises(openai.InternalServerError, match=message) as caught:
        ask(sdk, "hurried", do="hang")
    assert caught.value.status_code == 504
    # The stream has begun, with a comment that keeps it open.
    with pytest.raises(openai.APIError, match=message):
        list(sdk.chat.completions.create(model="hurried", messages=task(do="hang"), stream=True))
    # The model was told.
    until((chat_models / "hurried" / "cancelled").exists)


def test_a_client_that_goes_away(sdk: openai.OpenAI, chat_server: RunningServer, chat_models: Path) -> None:
    cancelled = chat_models / STREAMING / "cancelled"
    body = {"model": STREAMING, "messages": task(do="hang"), "stream": True}
    with httpx.stream("POST", f"{chat_server.openai_url}/chat/completions", json=body, timeout=WAIT_S) as response:
        # Nothing has come from the model yet.
        assert next(response.iter_bytes()) == b": keep-alive\n"
    until(cancelled.exists)
    cancelled.unlink()
    assert ask(sdk, STREAMING, do="echo").seen


def test_a_client_that_does_not_read(sdk: openai.OpenAI, chat_server: RunningServer, chat_models: Path) -> None:
    cancelled = chat_models / STREAMING / "cancelled"
    body = {"model": STREAMING, "messages": task(do="flood"), "stream": True}
    with httpx.stream("POST", f"{chat_server.openai_url}/chat/completions", json=body, timeout=WAIT_S) as response:
        pieces = response.iter_bytes()
        next(pieces)
        until(cancelled.exists)
        rest = b"".join(pieces)
    cancelled.unlink()
    assert b"its client reads too slowly" in rest
    assert rest.endswith(b"data: [DONE]\n\n")
    assert ask(sdk, STREAMING, do="echo").seen


def test_models_that_ask_this_server_do_not_block_it(sdk: openai.OpenAI) -> None:
    """More calls than BLS runs at a time, of models that each need another BLS call, the engine, or one another."""
    embeddings = {"path": "/v1/embeddings", "asked": {"model": "embedding", "input": "hi"}}
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    engine = {"path": "/v1/chat/completions", "asked": chat}
    streaming = {
        "path": "/v1/chat/completions",
        "asked": {"model": STREAMING, "messages": task(do="ask", **embeddings)},
    }

    def run(number: int) -> str:
        model = (*WHOLE, STREAMING)[number % 4]
        answer = ask(sdk, model, do="ask", **(embeddings, engine, streaming)[number // 4 % 3])
        return str(answer.choices[0].message.content)

    with ThreadPoolExecutor(48) as pool:
        assert list(pool.map(run, range(96))) == ["asked"] * 96


def test_a_server_that_stops_lets_them_end(sdk: openai.OpenAI, chat_server: RunningServer) -> None:
    """The last test of this server. What the models ask for meanwhile is answered, too."""
    started = threading.Event()
    pieces: list[bytes] = []

    def stream() -> None:
        body = {"model": STREAMING, "messages": task(do="pace", count=100, interval_s=0.03), "stream": True}
        url = f"{chat_server.openai_url}/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=WAIT_S) as response:
            for piece in response.iter_bytes():
                pieces.append(piece)
                started.set()

    thread = threading.Thread(target=stream)
    thread.start()
    assert started.wait(WAIT_S)
    chat_server.process.drain()
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    health = chat_server.openai_url.removesuffix("/v1") + "/health"
    until(lambda: httpx.get(health).json()["status"] == "draining")
    assert (
        ask(sdk, STREAMING, do="ask", path="/v1/chat/completions", asked=chat).seen["usage"]["completion_tokens"] == 4
    )
    thread.join(WAIT_S)
    received = b"".join(pieces)
    assert received.count(b'"content": "x"') == 100
    assert received.endswith(b"data: [DONE]\n\n")
    assert chat_server.process.wait(WAIT_S) == 0
