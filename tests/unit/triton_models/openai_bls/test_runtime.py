from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from tritonclient.grpc import service_pb2_grpc

from openai_bls.api.http.listener import PortInUseError
from openai_bls.core.engine_types import EngineInfo, PromptRequest, PromptResult, TokenDelta
from openai_bls.core.errors import ApiError
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.service import Service
from openai_bls.transport.ipc.frames import address
from openai_bls.transport.ipc.prompt_server import PromptExchangeServer
from openai_bls.transport.ipc.server import ExchangeServer
from openai_bls.transport.model_calls import Arrays, ModelUnavailableError
from openai_bls.triton_models.openai_bls import runtime as runtime_module
from openai_bls.triton_models.openai_bls.runtime import Runtime
from openai_bls.triton_models.repository.engines import Backend, Transport
from tests.unit.core_support import (
    CHAT_TEMPLATE,
    EOS,
    WAIT_S,
    FakeEngine,
    FakeReply,
    engine_info,
    free_port,
    tiny_tokenizer,
    token_ids,
    write_tokenizer,
)
from tests.unit.transport.grpc.test_client import Model as OfficialModel
from tests.unit.transport.grpc.test_description import write_engine

_numbers = itertools.count()

CHAT = {"messages": [json.dumps([{"role": "user", "content": "hi"}]).encode()]}
LONG_CHAT = {"messages": [json.dumps([{"role": "user", "content": "hi" * 8192}]).encode()]}


def no_model(model: str, inputs: object, outputs: object) -> Arrays:
    raise ModelUnavailableError(f"{model} is not there")


class Fake:
    """An engine and a preprocessing that joins contents, under names of their own."""

    engine: FakeEngine
    server: ExchangeServer

    def __init__(self, tokenizer_dir: Path, owner: int, info: EngineInfo) -> None:
        number = next(_numbers)
        self.backend = Backend(f"tensorrt_llm_{number}", f"preprocessing_{number}", tokenizer_dir)
        self._owner = owner
        self._info = info
        self.prepared: list[PromptRequest] = []
        self.held = threading.Event()
        self.held.set()
        self.preparing = threading.Semaphore(0)
        self.preprocessing = PromptExchangeServer(address(self.backend.preprocessing, owner), self._prepare, threads=4)
        self.preprocessing.start()

    def load_engine(self) -> None:
        self.server = ExchangeServer(address(self.backend.engine, self._owner))
        self.engine = FakeEngine(self.server.on_step, self._info)
        self.server.start(self.engine)

    def deliver(self, at: int, text: str | list[int], reason: Any = None, **more: Any) -> None:
        self.engine.wait_for(lambda: len(self.engine.submitted) > at)
        request_id = self.engine.submitted[at].request_id
        self.engine.wait_for(lambda: request_id in self.engine.live)
        ids = token_ids(text) if isinstance(text, str) else text
        self.engine.step(TokenDelta(request_id, ids, reason, **more))

    def _prepare(self, request: PromptRequest) -> PromptResult:
        self.prepared.append(request)
        self.preparing.release()
        assert self.held.wait(WAIT_S)
        texts = request.prompts or ["".join(m["content"] for m in request.messages or [])]
        return PromptResult([token_ids(text) for text in texts])

    def close(self) -> None:
        self.held.set()
        self.preprocessing.close()
        if hasattr(self, "engine"):
            self.engine.close()
            self.server.close()


class OfficialServer:
    """A gRPC server on a thread of its own; its one model answers every prompt with "hé"."""

    def __init__(self, folder: Path) -> None:
        self.folder = write_engine(folder)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(WAIT_S)
        self.address = f"127.0.0.1:{port}"

    async def _start(self) -> int:
        self._model = OfficialModel(None)
        self._server = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self._model, self._server)
        port: int = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._answering = asyncio.create_task(self._answer())
        return port

    async def _answer(self) -> None:
        for at in itertools.count():
            await self._model.answer(at, token_ids("hé")[:1])
            await self._model.answer(at, token_ids("hé")[1:])
            await self._model.answer(at, [], final=True)

    def close(self) -> None:
        async def stop() -> None:
            self._answering.cancel()
            await self._server.stop(0)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class World:
    """A runtime, connected in process to fake engines, the first of which is the default."""

    def __init__(
        self,
        tokenizer_dir: Path,
        *,
        engine: bool = True,
        start: bool = True,
        owner: int = os.getpid(),
        further: Sequence[tuple[EngineInfo, Path]] = (),
        transport: tuple[Transport, Path] = ("exchange", Path()),
        **settings: Any,
    ) -> None:
        self.closed = False
        engines = [(engine_info(), tokenizer_dir), *further]
        self.fakes = [Fake(folder, owner, info) for info, folder in engines]
        self.default = self.fakes[0]
        self.default.backend = msgspec.structs.replace(
            self.default.backend, transport=transport[0], engine_dir=transport[1]
        )
        if engine:
            self.load_engine()
        self.runtime = Runtime(
            OpenAiBlsSettings(**{"http_port": 0, **settings}),
            [fake.backend for fake in self.fakes],
            owner=owner,
            call_model=no_model,
        )
        if start:
            self.runtime.start()

    @property
    def engine(self) -> FakeEngine:
        return self.default.engine

    @property
    def server(self) -> ExchangeServer:
        return self.default.server

    def load_engine(self) -> None:
        self.default.load_engine()

    def deliver(self, at: int, text: str, reason: Any = None, stop_token_id: int | None = None) -> None:
        self.default.deliver(at, text, reason, stop_token_id=stop_token_id)

    def service(self) -> Service:
        """Once it is there, for which a first request or a port is needed."""
        return asyncio.run_coroutine_threadsafe(self.runtime._ready_service(), self.runtime._loop).result(WAIT_S)

    def ask(self, tensors: dict[str, list[bytes]] | None = None, **parameters: Any) -> FakeReply:
        reply = FakeReply()
        self.runtime.accept(CHAT if tensors is None else tensors, parameters, reply)
        return reply

    def idle(self) -> bool:
        service = self.runtime._service
        return not self.runtime._senders.open and (not service.done() or service.result().in_progress == 0)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            for fake in self.fakes:
                fake.held.set()
            self.runtime.close()
            for fake in self.fakes:
                fake.close()


def refusal(reply: FakeReply) -> ApiError:
    """The error that ends `reply`."""
    reply.wait_end()
    assert reply.error is not None
    return reply.error


def succeeded(reply: FakeReply) -> bool:
    reply.wait_end()
    return reply.error is None


def get(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def models_at(port: int) -> list[str]:
    return [card["id"] for card in json.loads(get(port, "/v1/models"))["data"]]


@pytest.fixture
def make(tokenizer_dir: Path) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(**options: Any) -> World:
        worlds.append(World(tokenizer_dir, **options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()
        assert world.idle()
        assert not world.runtime._senders._answers


def test_a_whole_answer(make: Callable[..., World]) -> None:
    world = make()
    reply = world.ask(max_tokens=5)
    world.deliver(0, "hé", "stop", EOS)
    reply.wait_end()
    (body,) = reply.bodies
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["content"] == "hé"
    assert (reply.finals, reply.error) == (1, None)
    assert world.engine.submitted[0].max_tokens == 5


def test_a_stream_opens_with_the_role_at_once_and_ends_without_done(make: Callable[..., World]) -> None:
    world = make()
    reply = world.ask(stream=True)
    reply.wait_for(lambda: len(reply.bodies) == 1)
    assert reply.bodies[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    world.deliver(0, "a")
    reply.wait_for(lambda: len(reply.bodies) == 2)
    world.deliver(0, "b", "length")
    reply.wait_end()
    deltas = [body["choices"][0]["delta"] for body in reply.bodies]
    assert deltas[1:] == [{"content": "a"}, {"content": "b"}, {}]
    assert (reply.finals, reply.error) == (1, None)


@pytest.mark.parametrize(
    ("tensors", "parameters", "param"),
    [
        ({}, {}, "messages"),
        ({"request": [b"{"]}, {}, "request"),
        ({"prompt": [b"x"]}, {"n": 0}, "n"),
        ({"prompt": [b"x"]}, {"what": 1}, "what"),
        ({"prompt": [b"x"]}, {"model": "other"}, "model"),
        ({"prompt": [b"x"]}, {"n": 2**31 - 1}, "n"),
        ({"prompt": [b""]}, {}, "prompt"),
        ({"endpoint": [b"tokenize"]}, {}, "prompt"),
        ({"endpoint": [b"tokenize"], "prompt": [b"x"]}, {"stream": True}, "stream"),
        ({"endpoint": [b"detokenize"], "tokens": [b"[1000000]"]}, {}, "tokens"),
        ({"endpoint": [b"embeddings"], "input": [b"[]"]}, {}, "input"),
        ({"tokens": [b"[1]"]}, {}, "messages"),
        ({"prompt": [b"x"]}, {"endpoint": "tokenize"}, "endpoint"),
    ],
)
def test_bad_requests_are_refused(
    make: Callable[..., World], tensors: dict[str, list[bytes]], parameters: dict[str, Any], param: str
) -> None:
    world = make()
    streams: list[dict[str, Any]] = [{}] if "endpoint" in tensors else [{"stream": False}, {"stream": True}]
    for more in streams:
        reply = world.ask(tensors, **parameters, **more)
        error = refusal(reply)
        assert (error.status, error.param) == (404 if param == "model" else 400, param)
        assert (reply.bodies, reply.finals) == ([], 1)


@pytest.mark.parametrize("arguments", ['{"a": 1000000000000000000000000}', '{"a": "\\\\ud800"}'])
def test_values_that_the_wire_to_preprocessing_cannot_carry(make: Callable[..., World], arguments: str) -> None:
    world = make()
    call = {"type": "function", "function": {"name": "f", "arguments": arguments.replace("\\\\", "\\")}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    reply = world.ask({"messages": [json.dumps(messages).encode()]})
    assert refusal(reply).status == 400


def test_an_engine_error_before_and_after_output(make: Callable[..., World]) -> None:
    world = make()
    whole, stream = world.ask(), world.ask(stream=True)
    stream.wait_for(lambda: stream.bodies)
    for at in (0, 1):
        world.deliver(at, "", "error")
    assert refusal(whole).status == 500
    assert whole.bodies == []
    # After output the error is a response of its own.
    assert succeeded(stream)
    assert set(stream.bodies[-1]["error"]) == {"message", "type", "param", "code"}
    assert stream.finals == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_has_gone_stops_the_engines_work(make: Callable[..., World], stream: bool) -> None:
    world = make()
    reply, other = world.ask(stream=stream), world.ask(stream=stream)
    world.engine.wait_for(lambda: len(world.engine.live) == 2)
    reply.cancelled = True
    reply.wait_end()
    world.engine.wait_for(lambda: len(world.engine.cancelled) == 1)
    assert not other.finals
    (left,) = world.engine.live
    world.engine.step(TokenDelta(left, [], "stop"))
    other.wait_end()
    assert other.error is None


def test_requests_wait_for_an_engine_that_loads_later(make: Callable[..., World]) -> None:
    world = make(engine=False)
    reply = world.ask()
    bad = world.ask({})
    bad.wait_end()
    assert not reply.finals
    world.load_engine()
    world.deliver(0, "a", "stop")
    assert succeeded(reply)


def test_a_lost_engine_ends_what_runs_and_is_found_again(make: Callable[..., World]) -> None:
    world = make()
    whole, stream = world.ask(), world.ask(stream=True)
    world.engine.wait_for(lambda: len(world.engine.live) == 2)
    # As if it had died: nobody is told of anything.
    world.server.close()
    assert refusal(whole).status == 503
    stream.wait_end()
    assert "error" in stream.bodies[-1]
    assert refusal(world.ask()).status == 503
    world.load_engine()
    # Until it has been found again.
    while not world.engine.submitted:
        again = world.ask()
        while not world.engine.submitted and not again.finals:
            time.sleep(0.002)
    world.deliver(0, "a", "stop")
    assert succeeded(again)


def test_closing_answers_everybody(make: Callable[..., World]) -> None:
    world = make()
    running, stream = world.ask(), world.ask(stream=True)
    world.engine.wait_for(lambda: len(world.engine.live) == 2)
    for _ in range(2):
        assert world.default.preparing.acquire(timeout=WAIT_S)
    world.default.held.clear()
    # So long that a thread prepares each, whether they arrive in one frame or in two: both are being prepared at once.
    preparing = [world.ask(LONG_CHAT, stream=streamed) for streamed in (False, True)]
    for _ in range(2):
        assert world.default.preparing.acquire(timeout=WAIT_S)
    world.runtime.close()
    world.default.held.set()
    for reply in (running, stream, *preparing):
        reply.wait_end()
        assert reply.finals == 1
    for reply in (running, *preparing):
        assert reply.error is not None
        assert reply.error.status == 503
    assert "error" in stream.bodies[-1]


def test_closing_without_an_engine(make: Callable[..., World]) -> None:
    """Whoever waits for it is answered; one that was never started closes, too."""
    world = make(engine=False)
    reply = world.ask()
    world.close()
    assert refusal(reply).status == 503
    make(start=False).close()


def test_the_engine_is_looked_for_once_the_server_is_up(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    enough = threading.Event()

    def listening_ports(pid: int) -> set[int]:
        asked.append(pid)
        if len(asked) == 3:
            enough.set()
        return set()

    monkeypatch.setattr(runtime_module, "listening_ports", listening_ports)
    monkeypatch.setattr(runtime_module, "_SERVER_RETRY_S", 0.005)
    world = make(owner=77)
    assert enough.wait(WAIT_S)
    assert set(asked) == {77}
    assert world.runtime._engines[0].client is None
    # A first request of Triton's own shows that it is up.
    reply = world.ask()
    world.deliver(0, "a", "stop")
    assert succeeded(reply)


def test_v1_opens_once_tritonserver_has_all_its_ports(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC comes first, and a server that cannot have the next one ends: it must not have answered meanwhile."""
    rounds: list[set[int]] = []
    enough = threading.Event()
    found = {8001, 40000}

    def listening_ports(pid: int) -> set[int]:
        rounds.append(set(found))
        if len(rounds) == 3:
            enough.set()
        return set(found)

    monkeypatch.setattr(runtime_module, "front_ends", lambda pid: {"grpc": 8001, "http": 8000})
    monkeypatch.setattr(runtime_module, "listening_ports", listening_ports)
    monkeypatch.setattr(runtime_module, "_SERVER_RETRY_S", 0.005)
    port = free_port()
    world = make(owner=77, http_port=port)
    assert enough.wait(WAIT_S)
    assert world.runtime._http is None
    found.add(8000)
    assert "ok" in get(port, "/health/live")


def test_a_port_that_never_comes_does_not_keep_v1_shut(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runtime_module, "front_ends", lambda pid: {"grpc": 8001, "http": 8000})
    monkeypatch.setattr(runtime_module, "listening_ports", lambda pid: {8001})
    monkeypatch.setattr(runtime_module, "_FRONT_ENDS_S", 0.0)
    port = free_port()
    with caplog.at_level(logging.WARNING, logger="openai_bls"):
        make(owner=77, http_port=port)
        assert "ok" in get(port, "/health/live")
    assert "tritonserver is up without http (8000)" in caplog.text


@pytest.fixture
def official(tmp_path: Path) -> Iterator[OfficialServer]:
    server = OfficialServer(tmp_path / "engine")
    yield server
    server.close()


def test_an_engine_with_the_official_contract_alone(make: Callable[..., World], official: OfficialServer) -> None:
    """Reached through gRPC; its prompts still come over the exchange."""
    world = make(engine=False, transport=("grpc", official.folder), engine_grpc_url=official.address)
    reply, streamed = world.ask(max_tokens=5), world.ask(max_tokens=5, stream=True)
    assert succeeded(reply)
    assert succeeded(streamed)
    assert reply.bodies[0]["choices"][0]["message"]["content"] == "hé"
    assert reply.bodies[0]["choices"][0]["finish_reason"] == "stop"
    assert len(world.default.prepared) == 2
    assert type(world.runtime._engines[0].client).__name__ == "GrpcEngineClient"


def test_a_setting_forces_the_transport(make: Callable[..., World], official: OfficialServer) -> None:
    world = make(transport=("grpc", official.folder), engine_transport="exchange")
    reply = world.ask()
    world.deliver(0, "a", "stop")
    assert succeeded(reply)


def test_a_server_whose_grpc_front_end_cannot_be_used(
    make: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    # This process is no tritonserver.
    world = make(engine_transport="grpc")
    # Before that is known, and after.
    world.ask().wait_end()
    error = refusal(world.ask())
    assert error.status == 503
    assert "cannot be reached" in error.message
    assert "engine_grpc_url" in caplog.text


def test_without_tritonclient(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "openai_bls.transport.grpc.client", None)
    reply = make(engine_transport="grpc", engine_grpc_url="127.0.0.1:1").ask()
    assert refusal(reply).status == 503
    assert "pip install 'tritonclient[grpc]'" in caplog.text


def test_v1_listens_as_soon_as_the_engine_is_there(make: Callable[..., World]) -> None:
    port = free_port()
    world = make(http_port=port)
    assert models_at(port) == ["tiny", "openai_bls"]
    world.close()
    with pytest.raises(OSError, match="refused"):
        get(port, "/")


def test_a_port_that_is_taken_is_told_at_once(make: Callable[..., World], tokenizer_dir: Path) -> None:
    port = free_port()
    make(http_port=port)
    with pytest.raises(PortInUseError):
        Runtime(
            OpenAiBlsSettings(http_port=port), [Backend("tensorrt_llm", "preprocessing", tokenizer_dir)], 2, no_model
        )


def test_a_preprocessing_that_cannot_be_called_by_bls_is_told_at_once(tokenizer_dir: Path, tmp_path: Path) -> None:
    backend = Backend("tensorrt_llm", "theirs", tokenizer_dir, Path(), "exchange", tmp_path / "theirs", "bls")
    with pytest.raises(ValueError, match="the model theirs cannot be called by BLS"):
        Runtime(OpenAiBlsSettings(http_port=0), [backend], 2, no_model)
    # The setting has the last word.
    Runtime(OpenAiBlsSettings(http_port=0, preprocessing_transport="exchange"), [backend], 2, no_model).close()
    ours = msgspec.structs.replace(backend, prompt_transport="exchange")
    with pytest.raises(ValueError, match="cannot be called by BLS"):
        Runtime(OpenAiBlsSettings(http_port=0, preprocessing_transport="bls"), [ours], 2, no_model)


def small(tmp_path: Path) -> tuple[EngineInfo, Path]:
    """A second engine, whose tokenizer has each letter's case turned round."""
    folder = write_tokenizer(tmp_path, CHAT_TEMPLATE)
    content = json.loads(tiny_tokenizer().to_str())
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {token: vocabulary[token.swapcase()] for token in vocabulary if token.isascii()} | {
        token: at for token, at in vocabulary.items() if not token.isascii()
    }
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return engine_info(model_name="small", lora_names=("poet",)), folder


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


def test_each_name_reaches_its_engine(make: Callable[..., World], tmp_path: Path) -> None:
    world = make(further=[small(tmp_path)])
    second = world.fakes[1]
    second.load_engine()
    for at, name in enumerate(("tiny", "openai_bls", None)):
        reply = world.ask(model=name)
        world.deliver(at, "aB", "stop")
        reply.wait_end()
        assert reply.bodies[0]["choices"][0]["message"]["content"] == "aB"
    service = world.service()
    until(lambda: "small" in service.models.names)
    for at, name in enumerate(("small", "poet")):
        reply = world.ask(model=name)
        # Its own tokenizer's text.
        second.deliver(at, "aB", "stop")
        reply.wait_end()
        assert reply.bodies[0]["choices"][0]["message"]["content"] == "Ab"
        assert reply.bodies[0]["model"] == name
    assert [len(fake.engine.submitted) for fake in world.fakes] == [3, 2]
    assert [len(fake.prepared) for fake in world.fakes] == [3, 2]
    assert [request.lora_name for request in second.engine.submitted] == [None, "poet"]


def test_an_engine_that_comes_later_is_served_from_then_on(make: Callable[..., World], tmp_path: Path) -> None:
    port = free_port()
    world = make(further=[small(tmp_path)], http_port=port)
    service = world.service()
    assert service.models.names == ["tiny", "openai_bls"]
    assert refusal(world.ask(model="small")).status == 404
    world.fakes[1].load_engine()
    until(lambda: "small" in service.models.names)
    reply = world.ask(model="small")
    world.fakes[1].deliver(0, "x", "stop")
    assert succeeded(reply)
    assert models_at(port) == ["tiny", "openai_bls", "small", "poet"]


def test_a_further_engine_alone_opens_nothing_and_waits_for_the_default_one(
    make: Callable[..., World], tmp_path: Path
) -> None:
    world = make(engine=False, further=[small(tmp_path)])
    world.fakes[1].load_engine()
    reply = world.ask(model="small")
    until(lambda: world.runtime._engines[1].model is not None)
    assert not reply.finals
    world.load_engine()
    world.fakes[1].deliver(0, "x", "stop")
    assert succeeded(reply)


def test_the_small_endpoints_on_tritons(make: Callable[..., World]) -> None:
    world = make()
    tokenized = world.ask({"endpoint": [b"tokenize"], "prompt": ["hé".encode()]}, return_token_strs=False)
    text = world.ask({"endpoint": [b"detokenize"], "tokens": [json.dumps(token_ids("hé")).encode()]})
    embedding = {"endpoint": [b"embeddings"], "input": [b'"a"']}
    embedded = world.ask(embedding, encoding_format="float")
    world.default.deliver(0, [], "stop", embedding=[1.0, 0.0])
    assert all(map(succeeded, (tokenized, text, embedded)))
    assert tokenized.bodies == [{"count": 3, "max_model_len": 1000, "tokens": token_ids("hé"), "token_strs": None}]
    assert text.bodies == [{"prompt": "hé"}]
    assert embedded.bodies[0]["data"] == [{"object": "embedding", "index": 0, "embedding": [1.0, 0.0]}]
    # A client that has gone stops the engine's work.
    gone = world.ask(embedding)
    world.deliver(1, "", None)
    gone.cancelled = True
    gone.wait_end()
    world.engine.wait_for(lambda: world.engine.cancelled)


def test_metrics_tell_of_tritons_requests_and_the_engine(make: Callable[..., World]) -> None:
    port = free_port()
    world = make(http_port=port)
    service = world.service()
    refused = world.ask({"prompt": [b"x"]}, n=0)
    refused.wait_end()
    reply = world.ask()
    world.deliver(0, "a", "stop")
    reply.wait_end()
    until(lambda: service.models.default.engine.stats is not None)
    text = get(port, "/metrics")
    for line in (
        'openai_bls_requests_total{endpoint="completions",model="",outcome="400"} 1.0',
        'openai_bls_requests_total{endpoint="chat.completions",model="tiny",outcome="done"} 1.0',
        'openai_bls_engine_sequences_running{model="tiny"} 0.0',
        "openai_bls_requests_in_progress 0.0",
    ):
        assert line in text.splitlines()


KEYED = [{"api_key": "k"}, {"authorization": "Bearer k"}, {"Authorization": "bearer k"}, {"api_key": "a1"}]


@pytest.mark.parametrize("parameters", KEYED)
def test_a_key_as_a_parameter_or_a_forwarded_header(
    make: Callable[..., World], tmp_path: Path, parameters: dict[str, Any]
) -> None:
    (tmp_path / "keys").write_text("alice: a1\n")
    world = make(api_key="k", api_keys_file=str(tmp_path / "keys"))
    reply = world.ask(**parameters)
    world.deliver(0, "a", "stop")
    assert succeeded(reply)
    metrics = asyncio.run(world.service().metrics.scrape()).decode()
    labels = f'endpoint="chat.completions",key="{"alice" if "a1" in parameters.values() else ""}",model="tiny"'
    assert f'openai_bls_requests_total{{{labels},outcome="done"}} 1.0' in metrics


@pytest.mark.parametrize(
    "parameters", [{}, {"api_key": "x"}, {"api_key": True}, {"authorization": "k"}, {"authorization": "Basic k"}]
)
def test_a_wrong_key_is_refused_on_tritons_endpoints(make: Callable[..., World], parameters: dict[str, Any]) -> None:
    world = make(api_key="k")
    error = refusal(world.ask(**parameters))
    assert (error.status, error.code) == (401, "invalid_api_key")
    assert "'api_key'" in error.message


@pytest.mark.parametrize("settings", [{}, {"api_key": "k", "triton_requires_key": False}])
@pytest.mark.parametrize("parameters", [{}, {"api_key": "x"}, {"authorization": "Basic x"}])
def test_keys_that_nobody_asks_for_on_tritons_endpoints(
    make: Callable[..., World], settings: dict[str, Any], parameters: dict[str, Any]
) -> None:
    world = make(**settings)
    reply = world.ask(**parameters)
    world.deliver(0, "a", "stop")
    assert succeeded(reply)


def test_a_broken_file_of_keys_is_refused_at_the_start(make: Callable[..., World], tmp_path: Path) -> None:
    (tmp_path / "keys").touch()
    with pytest.raises(ValueError, match="holds no key"):
        make(engine=False, start=False, api_keys_file=str(tmp_path / "keys"))


def test_a_certificate_that_cannot_be_read_is_refused_at_the_start(make: Callable[..., World]) -> None:
    with pytest.raises(ValueError, match="/no/certificate cannot be read: No such file"):
        make(engine=False, start=False, ssl_certfile="/no/certificate")


@pytest.mark.parametrize("parameter", [True, False])
def test_a_request_that_is_too_large(make: Callable[..., World], parameter: bool) -> None:
    world = make(max_request_bytes=100)
    text = "x" * 101
    reply = world.ask(user=text) if parameter else world.ask({"prompt": [text.encode()]})
    assert refusal(reply).status == 413


def test_json_with_too_many_values_is_refused_and_text_with_commas_is_not(make: Callable[..., World]) -> None:
    world = make(max_request_values=100)
    ids = json.dumps({"prompt": [1] * 101}).encode()
    for tensors in ({"request": [ids]}, {"endpoint": [b"detokenize"], "tokens": [json.dumps([1] * 101).encode()]}):
        assert refusal(world.ask(tensors)).code == "too_many_values"
    world.ask({"prompt": [b"," * 101]})
    world.deliver(0, "a", "stop")
