from __future__ import annotations

import errno
import http.client
import itertools
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openai_bls.api.http.listening.listener import PortInUseError
from openai_bls.core.engine_types import EngineInfo, PromptRequest, PromptResult, TokenDelta
from openai_bls.core.errors import ApiError
from openai_bls.core.keys import watched_files
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.lifecycle import removed_keys
from openai_bls.transport.ipc.prompt_server import PromptExchangeServer
from openai_bls.transport.ipc.server import ExchangeServer
from openai_bls.transport.ipc.sockets import address
from openai_bls.transport.model_calls import Arrays, ModelUnavailableError
from openai_bls.triton_models.openai_bls import runtime as runtime_module
from openai_bls.triton_models.openai_bls.runtime import Runtime
from openai_bls.triton_models.repository.engines import Backend, Transport
from openai_bls.triton_models.repository.foreign_backend import foreign_backends
from tests.unit.core_support import WAIT_S, FakeEngine, FakeReply, engine_info, free_port, token_ids, write_tokenizer
from tests.waiting import until

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
        transport: Transport = "exchange",
        **settings: Any,
    ) -> None:
        self.closed = False
        engines = [(engine_info(), tokenizer_dir), *further]
        self.fakes = [Fake(folder, owner, info) for info, folder in engines]
        self.default = self.fakes[0]
        self.default.backend = msgspec.structs.replace(self.default.backend, transport=transport)
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

    def ask(self, tensors: dict[str, list[bytes]] | None = None, **parameters: Any) -> FakeReply:
        reply = FakeReply()
        self.runtime.accept(CHAT if tensors is None else tensors, parameters, reply)
        return reply

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


def test_an_engine_without_a_readable_tokenizer_leaves_the_others_served(
    make: Callable[..., World], tmp_path: Path
) -> None:
    port = free_port()
    (tmp_path / "tokenizer.json").write_text("{")
    world = make(further=[(engine_info(model_name="small"), tmp_path)], http_port=port)
    reply = world.ask()
    world.deliver(0, "a", "length")
    assert succeeded(reply)
    named = world.fakes[1].backend.engine
    health, listed = json.loads(get(port, "/health")), json.loads(get(port, "/v1/models"))
    assert (health["status"], list(health["failed"])) == ("ok", [named])
    assert listed["failed"] == health["failed"]
    assert "small" not in [card["id"] for card in listed["data"]]
    assert str(tmp_path) not in listed["failed"][named]


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


@pytest.mark.parametrize("arguments", ['{"a": 1000000000000000000000000}', '{"a": "\\\\ud800"}'])
def test_arguments_that_the_wire_to_preprocessing_cannot_carry(make: Callable[..., World], arguments: str) -> None:
    """A model may have written them, so they are taken: as text, and with U+FFFD for half a surrogate pair."""
    world = make()
    call = {"type": "function", "function": {"name": "f", "arguments": arguments.replace("\\\\", "\\")}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    reply = world.ask({"messages": [json.dumps(messages).encode()]})
    world.deliver(0, "ok", "length")
    reply.wait_end()
    assert (reply.error, reply.bodies[0]["choices"][0]["message"]["content"]) == (None, "ok")


def test_requests_wait_for_an_engine_that_loads_later(make: Callable[..., World]) -> None:
    world = make(engine=False)
    reply = world.ask()
    bad = world.ask({})
    bad.wait_end()
    assert not reply.finals
    world.load_engine()
    world.deliver(0, "a", "stop")
    assert succeeded(reply)


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
    port = free_port()
    make(owner=77, http_port=port)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(get, port, "/health/live")
        assert enough.wait(WAIT_S)
        assert not answer.done()
        found.add(8000)
        assert "ok" in answer.result(WAIT_S)


def test_a_port_that_never_comes_does_not_keep_v1_shut(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runtime_module, "front_ends", lambda pid: {"grpc": 8001, "http": 8000})
    monkeypatch.setattr(runtime_module, "listening_ports", lambda pid: {8001})
    monkeypatch.setattr(runtime_module, "FRONT_ENDS_S", 0.0)
    port = free_port()
    with caplog.at_level(logging.WARNING, logger="openai_bls"):
        make(owner=77, http_port=port)
        assert "ok" in get(port, "/health/live")
    assert "tritonserver is up without http (8000)" in caplog.text


def test_a_setting_forces_the_transport(make: Callable[..., World]) -> None:
    world = make(transport="grpc", engine_transport="exchange")
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
    (backend,) = foreign_backends().values()
    monkeypatch.setitem(sys.modules, backend.client.path.partition(":")[0], None)
    reply = make(engine_transport="grpc", engine_grpc_url="127.0.0.1:1").ask()
    assert refusal(reply).status == 503
    assert "pip install 'tritonclient[grpc]'" in caplog.text


def test_a_port_that_is_taken_is_told_at_once(make: Callable[..., World], tokenizer_dir: Path) -> None:
    port = free_port()
    make(http_port=port)
    with pytest.raises(PortInUseError):
        Runtime(
            OpenAiBlsSettings(http_port=port), [Backend("tensorrt_llm", "preprocessing", tokenizer_dir)], 2, no_model
        )


def test_a_preprocessing_that_cannot_be_called_by_bls_is_told_at_once(tokenizer_dir: Path, tmp_path: Path) -> None:
    backend = Backend("tensorrt_llm", "theirs", tokenizer_dir, Path(), "exchange", tmp_path / "theirs", "bls")
    with pytest.raises(ValueError, match=r"model theirs .*BLS"):
        Runtime(OpenAiBlsSettings(http_port=0), [backend], 2, no_model)
    # The setting has the last word.
    Runtime(OpenAiBlsSettings(http_port=0, preprocessing_transport="exchange"), [backend], 2, no_model).close()
    ours = msgspec.structs.replace(backend, prompt_transport="exchange")
    with pytest.raises(ValueError, match=r"model theirs .*BLS"):
        Runtime(OpenAiBlsSettings(http_port=0, preprocessing_transport="bls"), [ours], 2, no_model)


def small(tmp_path: Path) -> tuple[EngineInfo, Path]:
    """A second engine."""
    return engine_info(model_name="small", lora_names=("poet",)), write_tokenizer(tmp_path)


def test_an_engine_that_comes_later_is_served_from_then_on(make: Callable[..., World], tmp_path: Path) -> None:
    port = free_port()
    world = make(further=[small(tmp_path)], http_port=port)
    assert models_at(port) == ["tiny", "openai_bls"]
    assert refusal(world.ask(model="small")).status == 404
    world.fakes[1].load_engine()
    until(lambda: models_at(port) == ["tiny", "openai_bls", "small", "poet"])
    reply = world.ask(model="small")
    world.fakes[1].deliver(0, "x", "stop")
    assert succeeded(reply)


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


@pytest.mark.parametrize("parameters", [{}, {"api_key": "x"}])
def test_a_key_that_is_not_required_on_tritons_endpoints(
    make: Callable[..., World], parameters: dict[str, Any]
) -> None:
    world = make(api_key="k", triton_requires_key=False)
    reply = world.ask(**parameters)
    world.deliver(0, "a", "stop")
    assert succeeded(reply)


def test_what_runs_for_a_removed_key_ends(
    make: Callable[..., World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams and whole answers on Triton's endpoints; not those of others."""
    monkeypatch.setattr(watched_files, "CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(removed_keys, "CHECK_INTERVAL_S", 0.01)
    keys = tmp_path / "keys"
    keys.write_text("alice: a\nbob: b\n")
    world = make(api_keys_file=str(keys))
    stream, whole = (world.ask(api_key="a", stream=streamed) for streamed in (True, False))
    world.engine.wait_for(lambda: len(world.engine.live) == 2)
    other = world.ask(api_key="b")
    world.engine.wait_for(lambda: len(world.engine.live) == 3)
    keys.write_text("bob: b\n")
    for reply in (stream, whole):
        reply.wait_end()
        assert reply.finals == 1
    assert stream.bodies[-1]["error"]["code"] == "invalid_api_key"
    assert whole.error is not None
    assert whole.error.code == "invalid_api_key"
    world.deliver(2, "ok", "stop")
    assert succeeded(other)


@pytest.mark.parametrize("setting", ["api_keys_file", "ssl_certfile"])
def test_a_file_that_cannot_be_read_is_told_at_the_start(make: Callable[..., World], setting: str) -> None:
    with pytest.raises(ValueError, match=f"/no/file .*{os.strerror(errno.ENOENT)}"):
        make(engine=False, start=False, **{setting: "/no/file"})


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
