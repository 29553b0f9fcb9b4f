"""Starting and stopping with streams in the air, clients that go away, a server without /v1."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import openai
import pytest

from openai_bls.commands.main import main
from openai_bls.core.processes.machine import STUB_PROGRAM
from openai_bls.launcher.recovery.stub_watch import stubs
from openai_bls.launcher.serving.forwarded_headers import forwarded_headers
from openai_bls.launcher.testing import RunningServer, run_server
from openai_bls.launcher.tritonserver.ports import lease_ports
from tests.triton import triton_client
from tests.triton.conftest import ROOT
from tests.triton.conversations import HELLO
from tests.triton.metrics import find, on_triton, on_v1, scrape, wait_until_told
from tests.triton.operation import leaving
from tests.triton.operation.test_launcher import Launcher
from tests.waiting import Streams, until

pytestmark = pytest.mark.triton

CHAT_LABELS = str([("endpoint", "chat.completions"), ("model", "demo")])
# A null engine that echoes its prompt at a steady pace: streams last as long as the test needs.
SLOW_NULL = {"OPENAI_BLS_ENGINE": "null", "OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS": "20"}


def test_two_instances_and_a_sigterm_that_lets_streams_end(two_instances: Path) -> None:
    """Each instance takes its part of the connections; a bare tritonserver that is told to stop ends every stream."""
    with run_server(two_instances, env=SLOW_NULL) as server:
        body: dict[str, Any] = {"messages": HELLO, "max_tokens": 2}
        for count in range(1, 9):
            # A connection each, which either instance may get; a scrape sees both, whichever it reaches.
            response = httpx.post(f"{server.openai_url}/chat/completions", json=body, timeout=60)
            assert response.json()["usage"]["completion_tokens"] == 2
            assert find(scrape(server), "requests_total", endpoint="chat.completions", outcome="done") == 2 * count - 1
            answer = triton_client.chat(server.http_url, {**body, "messages": json.dumps(HELLO)})
            assert answer["usage"]["completion_tokens"] == 2
        refused = httpx.post(f"{server.openai_url}/chat/completions", json={**body, "temperature": -1}, timeout=60)
        assert refused.status_code == 400
        wait_until_told(server, lambda: on_v1(server))
        assert len(on_triton(server)) > 50
        streams = Streams(server, 16, 150)
        server.process.drain()
        streams.finish()
        code = server.process.wait(60)
        assert code == 0, server.log_path.read_text()[-4000:]
        assert server.process.leftovers() == []


def test_engine_failures_reach_the_client(repository: Path) -> None:
    """An engine that dies ends every stream with an error event and [DONE], and later requests with a 5xx."""
    env = {**SLOW_NULL, "OPENAI_BLS_ENGINE_NULL_CRASH_AT_STEP": "30"}
    with run_server(repository, env=env) as server:
        wait_for_health(server, "ok")
        assert docker_health(server) == ""
        Streams(server, 1).fail()
        body = {"messages": HELLO, "max_tokens": 2}
        response = httpx.post(f"{server.openai_url}/chat/completions", json=body, timeout=60)
        assert response.status_code >= 500
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        with pytest.raises(triton_client.TritonError):
            triton_client.chat(server.http_url, {"messages": json.dumps(HELLO), "max_tokens": 2})
        wait_for_health(server, "engine failed")
        assert "engine failed" in docker_health(server)


def docker_health(server: RunningServer) -> str:
    """What the image's health check says; nothing if all is well."""
    done = subprocess.run(
        [sys.executable, "docker/health.py"],
        env={
            "OPENAI_BLS_TRITON_HTTP_PORT": str(server.ports.http),
            "OPENAI_BLS_HTTP_PORT": str(server.ports.openai),
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == bool(done.stdout)
    return done.stdout


def stub(server: RunningServer, model: str) -> int:
    """Process id of the model's stub."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
            parent = int((entry.parent / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        is_stub = words[0].endswith(STUB_PROGRAM.encode())
        if is_stub and parent == server.process.pid and words[1].endswith(f"/{model}/1/model.py".encode()):
            return int(entry.parent.name)
    raise AssertionError(f"no stub of {model}")


def health(server: RunningServer) -> dict[str, Any]:
    """What /health says."""
    response = httpx.get(server.openai_url.removesuffix("/v1") + "/health", timeout=60)
    answer: dict[str, Any] = response.json()
    assert response.status_code == (200 if answer["status"] == "ok" else 503)
    return answer


def wait_for_health(server: RunningServer, status: str, models: dict[str, str] | None = None) -> None:
    """Wait until /health says `status`, and this of the models."""
    until(lambda: (answer := health(server))["status"] == status and models in (None, answer["models"]))


def stopped_and_dead_models_are_missed(server: RunningServer, reload: list[str]) -> None:
    """/health, the metrics and the image's health check say which, although Triton calls every model ready."""
    names = ("tensorrt_llm", "preprocessing", "postprocessing", "tensorrt_llm_bls")
    models = dict.fromkeys(names, "up")
    wait_for_health(server, "ok", models)
    stopped = stub(server, "preprocessing")
    os.kill(stopped, signal.SIGSTOP)
    try:
        wait_for_health(server, "preprocessing does not answer", models | {"preprocessing": "silent"})
        assert "preprocessing does not answer" in docker_health(server)
        assert find(scrape(server), "model_up", triton_model="preprocessing") == 0
        assert find(scrape(server), "model_up", triton_model="tensorrt_llm") == 1
    finally:
        os.kill(stopped, signal.SIGCONT)
    wait_for_health(server, "ok")
    for name in ("postprocessing", "tensorrt_llm_bls"):
        os.kill(stub(server, name), signal.SIGKILL)
        wait_for_health(server, f"{name} has died", models | {name: "lost"})
        assert main([*reload, name]) == 0
        wait_for_health(server, "ok", models)
    assert docker_health(server) == ""


def test_leaving_clients_and_an_engine_loaded_again(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the guide's table says. Unloading the engine under a stream ends it with an error; then requests are
    answered again."""
    args = ["--model-control-mode=explicit", "--load-model=*"]
    env = {**SLOW_NULL, "OPENAI_BLS_ENGINE_MAX_BATCH_SIZE": "1"}
    with ExitStack() as stack, run_server(repository, env=env, args=args) as server:
        leaving.check_all(server)
        stream = Streams(server, 1)
        inherited = stack.enter_context(socket.create_connection(("127.0.0.1", server.ports.http)))
        inherited.settimeout(30)
        assert ready(inherited) == b"HTTP/1.1 200 OK"
        command = ["reload", "--grpc-port", str(server.ports.grpc), "--http-port", str(server.ports.http)]
        assert main([*command, "tensorrt_llm"]) == 0
        assert capsys.readouterr().out.startswith("tensorrt_llm is loaded again (")
        stream.fail()
        body = {"messages": HELLO, "max_tokens": 3}
        # The first request may well come before openai_bls has found the new engine: it waits.
        response = httpx.post(f"{server.openai_url}/chat/completions", json=body, timeout=60)
        assert response.status_code == 200
        assert triton_client.generate(server.http_url, "ensemble", {"text_input": "Hello", "max_tokens": 3})
        stopped_and_dead_models_are_missed(server, command)
        capsys.readouterr()
        assert main([*command, "openai_bsl"]) == 2
        assert "there is no model 'openai_bsl' in the server; did you mean openai_bls?" in capsys.readouterr().err
        # Triton's port has begun again from 0, as Prometheus expects of a counter; /v1's has gone on.
        assert main([*command, "openai_bls"]) == 0
        assert httpx.post(f"{server.openai_url}/chat/completions", json=body, timeout=60).status_code == 200
        tokens = ("counter", "openai_bls_generation_tokens", CHAT_LABELS)
        wait_until_told(server, lambda: {**on_triton(server), tokens: 3})
        assert on_v1(server)[tokens] > 3
        # The new engine's process has let go of this client's connection: what the server closes is closed.
        assert ready(inherited, "close") == b"HTTP/1.1 200 OK"
        assert inherited.recv(1) == b""
        assert server.process.stop() == 0


def ready(connection: socket.socket, then: str = "keep-alive") -> bytes:
    """First line of the answer of Triton's ready endpoint, the whole of which is read."""
    request = f"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: {then}\r\n\r\n"
    connection.sendall(request.encode())
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        piece = connection.recv(4096)
        assert piece
        received += piece
    return received.partition(b"\r\n")[0]


def test_the_launcher_recovers_models_that_die(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream of an engine that dies ends with an error; then /health is well again, and metrics count it."""
    for name, value in SLOW_NULL.items():
        monkeypatch.setenv(name, value)
    with lease_ports() as ports:
        launcher = Launcher(repository, ports)
        try:
            launcher.read_until(r"Listening: .*\n")
            # The process is the launcher's own affair.
            recovered_from_dead_models(launcher, RunningServer(cast("Any", None), ports))
        finally:
            launcher.process.terminate()
            assert launcher.finish() == 0


def recovered_from_dead_models(launcher: Launcher, server: RunningServer) -> None:
    stream = Streams(server, 1)
    models = stubs(launcher.tritonserver())
    for model in ("tensorrt_llm", "preprocessing"):
        os.kill(models[model][0].pid, signal.SIGKILL)
    stream.fail()
    launcher.read_until(r"(tensorrt_llm|preprocessing) is loaded again(.*\n)*.* is loaded again")
    wait_for_health(server, "ok")
    body = {"messages": HELLO, "max_tokens": 3}
    assert httpx.post(f"{server.openai_url}/chat/completions", json=body, timeout=60).status_code == 200
    found = {part: find(scrape(server), "restarts_total", part=part) for part in ("tensorrt_llm", "tritonserver")}
    assert found == {"tensorrt_llm": 1, "tritonserver": 0}


def answers(client: openai.OpenAI) -> bool:
    """Whether the client's key is one."""
    try:
        client.models.list()
    except openai.AuthenticationError:
        return False
    return True


def refused(ask: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a model on Triton's endpoints refuses a request for want of a key."""
    try:
        ask(*arguments)
    except triton_client.TritonError as error:
        return "Incorrect or missing API key" in error.error
    return False


def check_keys_on_tritons_endpoints(server: RunningServer) -> None:
    """One key is `secret`, the other one `alice`'s."""
    chat: dict[str, Any] = {"messages": json.dumps(HELLO), "max_tokens": 2}
    text = {"text_input": "Hello", "max_tokens": 2, "bad_words": "", "stop_words": ""}
    below = {
        "preprocessing": [triton_client.infer_input("QUERY", [["Hello"]], "BYTES")],
        "postprocessing": [triton_client.infer_input("TOKENS_BATCH", np.array([[[5, 6]]], dtype=np.int32), "INT32")],
        "tensorrt_llm": [
            triton_client.infer_input(name, np.array([value], dtype=np.int32), "INT32")
            for name, value in (("input_ids", [5, 6]), ("input_lengths", [2]), ("request_output_len", [2]))
        ],
    }

    def by_tensors(model: str, tensors: list[Any], parameters: dict[str, str]) -> None:
        with triton_client.GrpcStream(server.grpc_url) as stream:
            stream.send(model, tensors, parameters)
            assert list(stream.responses())

    for key in ("secret", "a1"):
        assert triton_client.chat(server.http_url, {**chat, "api_key": key})["usage"]["completion_tokens"] == 2
        assert triton_client.chat_stream(server.http_url, {**chat, "api_key": key})
        assert triton_client.generate(server.http_url, "tensorrt_llm_bls", {**text, "api_key": key})["text_output"]
    for wrong in ({}, {"api_key": "wrong"}):
        with pytest.raises(triton_client.TritonError) as caught:
            triton_client.chat(server.http_url, {**chat, **wrong})
        assert (caught.value.status, caught.value.body["error"]["code"]) == (400, "invalid_api_key")
        assert refused(triton_client.chat_stream, server.http_url, {**chat, **wrong})
        assert refused(triton_client.generate, server.http_url, "tensorrt_llm_bls", {**text, **wrong})
        assert refused(triton_client.generate, server.http_url, "ensemble", {**text, **wrong})
        for model, tensors in below.items():
            assert refused(by_tensors, model, tensors, wrong), model
    # What an ensemble is given goes on to each of its steps.
    assert triton_client.generate(server.http_url, "ensemble", {**text, "api_key": "a1"})["text_output"]
    for model, tensors in below.items():
        by_tensors(model, tensors, {"api_key": "a1"})
    request = [triton_client.infer_input("request", [json.dumps({"messages": HELLO, "max_tokens": 2})], "BYTES")]
    words = [
        triton_client.infer_input("text_input", [["Hello"]], "BYTES"),
        triton_client.infer_input("max_tokens", np.array([[2]], dtype=np.int32), "INT32"),
    ]

    def by_text(headers: dict[str, str]) -> None:
        with triton_client.GrpcStream(server.grpc_url, headers) as stream:
            stream.send("tensorrt_llm_bls", words)
            assert list(stream.responses())

    assert triton_client.grpc_chat(server.grpc_url, request, {"api_key": "a1"})
    assert triton_client.grpc_chat(server.grpc_url, request, {}, {"authorization": "Bearer a1"})
    by_text({"authorization": "Bearer secret"})
    assert refused(by_text, {"authorization": "Bearer wrong"})
    assert refused(triton_client.grpc_chat, server.grpc_url, request, {}, {"authorization": "Basic a1"})
    assert refused(triton_client.grpc_chat, server.grpc_url, request, {})


@contextmanager
def streams_that_end_with_their_key(server: RunningServer) -> Iterator[None]:
    """Alice's streams on Triton's endpoints; once the block has ended, her key is none, and they end."""
    body = json.dumps({"messages": HELLO, "max_tokens": 2_000, "stream": True, "ignore_eos": True})
    text = [
        triton_client.infer_input("text_input", [["Hello"]], "BYTES"),
        triton_client.infer_input("max_tokens", np.array([[2_000]], dtype=np.int32), "INT32"),
        triton_client.infer_input("end_id", np.array([[-1]], dtype=np.int32), "INT32"),
        triton_client.infer_input("stream", np.array([[True]]), "BOOL"),
    ]
    requests = {"openai_bls": [triton_client.infer_input("request", [body], "BYTES")], "tensorrt_llm_bls": text}
    with ExitStack() as stack:
        running = []
        for model, tensors in requests.items():
            stream = stack.enter_context(triton_client.GrpcStream(server.grpc_url))
            stream.send(model, tensors, {"api_key": "a1"})
            responses = stream.responses()
            next(responses)
            running.append(responses)
        yield
        of_chat, of_text = running
        (*_, last) = of_chat
        assert json.loads(last.as_numpy("response").reshape(-1)[0])["error"]["code"] == "invalid_api_key"
        with pytest.raises(triton_client.TritonError):
            list(of_text)


def test_api_keys_and_concurrency_limit(repository: Path, tmp_path: Path) -> None:
    """One request more than allowed is a 429 that OpenAI clients know to retry."""
    keys = tmp_path / "keys"
    keys.write_text("alice: a1\n")
    env = {**SLOW_NULL, "OPENAI_BLS_MAX_CONCURRENT_REQUESTS": "1", "OPENAI_BLS_API_KEY": "secret"}
    env["OPENAI_BLS_API_KEYS_FILE"] = str(keys)
    options: dict[str, Any] = {"model": "openai_bls", "messages": HELLO, "max_tokens": 2}
    with (
        run_server(repository, env=env, args=forwarded_headers(repository, [], env)) as server,
        openai.OpenAI(base_url=server.openai_url, api_key="wrong", max_retries=0) as stranger,
        openai.OpenAI(base_url=server.openai_url, api_key="secret", max_retries=0) as client,
    ):
        with pytest.raises(openai.AuthenticationError) as strange:
            stranger.models.list()
        assert strange.value.code == "invalid_api_key"
        stream = client.chat.completions.create(
            **{**options, "max_tokens": 150, "extra_body": {"ignore_eos": True}}, stream=True
        )
        next(stream)
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(**options)
        assert (caught.value.type, caught.value.code) == ("requests", "rate_limit_exceeded")
        assert caught.value.response.headers["retry-after"]
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
        assert client.chat.completions.create(**options).usage
        check_keys_on_tritons_endpoints(server)
        # As a configuration map or a careful editor changes it.
        with streams_that_end_with_their_key(server):
            (tmp_path / "new").write_text("bob: b1\n")
            (tmp_path / "new").rename(keys)
        bob = client.with_options(api_key="b1")
        until(lambda: answers(bob))
        assert not answers(client.with_options(api_key="a1"))
        assert bob.chat.completions.create(**options).usage
        done = {"endpoint": "chat.completions", "outcome": "done"}
        counted = {key: find(scrape(server), "requests_total", key=key, **done) for key in ("alice", "bob", "")}
        assert counted == {"alice": 4, "bob": 1, "": 4}
        wait_until_told(server, lambda: on_v1(server))
