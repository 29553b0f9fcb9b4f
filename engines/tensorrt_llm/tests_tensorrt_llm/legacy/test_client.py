"""Against a gRPC server of the real protocol, with a model whose answers each test gives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from openai_bls.core.engine_types import EngineInfo, GenerationRequest, SamplingParams, TokenDelta
from openai_bls.core.errors import OverloadedError
from openai_bls_tensorrt_llm.legacy import client as client_module
from openai_bls_tensorrt_llm.legacy.client import GrpcEngineClient
from openai_bls_tensorrt_llm.legacy.decoding import UNAVAILABLE
from tests.unit.core_support import WAIT_S, until
from tests_tensorrt_llm.legacy.test_description import write_engine


class Model(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Triton with one model, which answers as the tests say; a stop request ends a live one."""

    def __init__(self, name: str | None = "engine") -> None:
        self.name = name
        """None answers to any."""
        self.ready = True
        self.refuses = ""
        self.requests: list[Any] = []
        self.stops: list[str] = []
        self.live: dict[str, asyncio.Queue[Any]] = {}
        self.broken_off = 0
        self.changed = asyncio.Condition()

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.ModelReadyResponse(ready=self.ready and self.name in (None, request.name))

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> Any:  # noqa: N802
        answers: asyncio.Queue[Any] = asyncio.Queue()
        reader = asyncio.create_task(self._read(requests, answers))
        whole = False
        try:
            while (answer := await answers.get()) is not None:
                yield answer
            # A client that breaks off may look like one that has no more to say.
            whole = answers not in self.live.values()
        finally:
            # By a cancellation, or closed while it sends.
            self.broken_off += not whole
            reader.cancel()

    async def _read(self, requests: AsyncIterator[Any], answers: asyncio.Queue[Any]) -> None:
        async for request in requests:
            async with self.changed:
                if self.refuses:
                    answers.put_nowait(error(request.id, self.refuses))
                elif any(tensor.name == "stop" for tensor in request.inputs):
                    self.stops.append(request.id)
                    if self.live.pop(request.id, None) is not None:
                        answers.put_nowait(response(request.id, [], final=True))
                    answers.put_nowait(response(request.id, None, final=True))
                else:
                    self.requests.append(request)
                    self.live[request.id] = answers
                    self.taken(request)
                self.changed.notify_all()
        # Closed by the client: the server ends the stream once all has been answered.
        answers.put_nowait(None)

    def taken(self, request: Any) -> None:
        """A request is live."""

    async def until(self, condition: Callable[[], object]) -> None:
        async with self.changed:
            await asyncio.wait_for(self.changed.wait_for(condition), WAIT_S)

    async def answer(self, at: int, tokens: list[int], *, final: bool = False, **more: Any) -> None:
        await self.until(lambda: len(self.requests) > at)
        triton_id = self.requests[at].id
        self.live[triton_id].put_nowait(response(triton_id, tokens, final=final, **more))
        if final:
            del self.live[triton_id]

    async def fail(self, at: int, message: str) -> None:
        await self.until(lambda: len(self.requests) > at)
        self.live.pop(self.requests[at].id).put_nowait(error(self.requests[at].id, message))


def response(
    triton_id: str, tokens: list[int] | None, *, final: bool, log_probs: list[float] | None = None, pad: int = 0
) -> Any:
    answer = service_pb2.ModelInferResponse(id=triton_id)
    answer.parameters["triton_final_response"].bool_param = final
    arrays: dict[str, Any] = {}
    if tokens is not None:
        # In the order that a server likes.
        arrays["sequence_length"] = np.array([[len(tokens)]], dtype=np.int32)
        arrays["output_ids"] = np.array([[[*tokens, *[-1] * pad]]], dtype=np.int32)
    if log_probs is not None:
        arrays["output_log_probs"] = np.array([[log_probs]], dtype=np.float32)
    for name, array in arrays.items():
        answer.outputs.add(name=name, shape=list(array.shape))
        answer.raw_output_contents.append(array.tobytes())
    return service_pb2.ModelStreamInferResponse(infer_response=answer)


def error(triton_id: str, message: str) -> Any:
    answer = service_pb2.ModelInferResponse(id=triton_id)
    return service_pb2.ModelStreamInferResponse(error_message=message, infer_response=answer)


class Listener:
    def __init__(self) -> None:
        self.deltas: list[TokenDelta] = []
        self.heard = asyncio.Condition()
        self.ended = asyncio.Event()

    def __call__(self, delta: TokenDelta) -> None:
        assert not self.ended.is_set(), "a delta after the last"
        self.deltas.append(delta)
        if delta.finish_reason is not None:
            self.ended.set()

    @property
    def tokens(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]

    async def last(self) -> TokenDelta:
        await asyncio.wait_for(self.ended.wait(), WAIT_S)
        return self.deltas[-1]


class World:
    def __init__(self, folder: Path, model: Model) -> None:
        self.folder = folder
        self.model = model
        self.infos: list[EngineInfo] = []
        self.server = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self.model, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    async def start(self) -> None:
        await self.server.start()
        self.client = GrpcEngineClient("engine", self.folder, f"127.0.0.1:{self.port}", self.infos.append)

    def submit(self, **fields: Any) -> tuple[int, Listener]:
        request_id = self.client.new_request_id()
        listener = Listener()
        given = {"prompt_token_ids": [5, 6], "max_tokens": 4, "stop_token_ids": (2,), **fields}
        self.client.submit(GenerationRequest(request_id, **given), listener)
        return request_id, listener


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_engine(tmp_path / "engine")


@asynccontextmanager
async def running(folder: Path, model: Model) -> AsyncIterator[World]:
    made = World(folder, model)
    await made.start()
    try:
        yield made
    finally:
        try:
            await made.client.close()
        finally:
            # One that goes on hangs the process when it is collected.
            await made.server.stop(0)


@pytest.fixture
async def w(folder: Path) -> AsyncIterator[World]:
    async with running(folder, Model()) as made:
        yield made


async def test_requests_are_matched_with_their_answers(w: World) -> None:
    await w.client.ready()
    (_, first), (_, second) = w.submit(), w.submit(logprobs=0, sampling=SamplingParams(temperature=0))
    await w.model.answer(1, [7, 8], log_probs=[-1.0, -2.0], pad=3)
    await w.model.answer(0, [9])
    await w.model.answer(1, [6], log_probs=[-1.0, -2.0, -0.5], final=True)
    await w.model.answer(0, [], final=True)
    assert (await first.last()).stop_token_id == 2
    assert (await second.last()).finish_reason == "stop"
    assert (first.tokens, second.tokens) == ([9], [7, 8, 6])
    told = [value for delta in second.deltas if delta.logprobs for value in delta.logprobs.token_logprobs]
    assert told == [-1.0, -2.0, -0.5]
    stats = w.client.stats
    assert stats is not None
    assert stats.generated_tokens == 4
    assert w.client.live == 0
    ids = [request.id for request in w.model.requests]
    assert len(set(ids)) == 2
    assert [o.name for o in w.model.requests[0].outputs] == ["output_ids", "sequence_length"]
    assert w.model.broken_off == 0


@pytest.mark.usefixtures("too_late")
async def test_a_server_that_ends_a_stream_first(w: World, caplog: pytest.LogCaptureFixture) -> None:
    await w.client.ready()
    _, listener = w.submit()
    await w.model.answer(0, [5], final=True)
    assert (await listener.last()).finish_reason == "stop"
    await w.server.stop(0)
    await until(lambda: not w.client._tasks)
    assert "failed" not in caplog.text


async def test_two_clients_have_different_triton_ids(w: World) -> None:
    other = GrpcEngineClient("engine", w.folder, f"127.0.0.1:{w.port}", w.infos.append)
    for client in (w.client, other):
        await client.ready()
        client.submit(GenerationRequest(1, [1], 1), Listener())
    await w.model.until(lambda: len(w.model.requests) == 2)
    assert w.model.requests[0].id != w.model.requests[1].id
    await other.close()


async def test_a_cancelled_request_is_stopped_and_its_listener_hears_nothing(w: World) -> None:
    await w.client.ready()
    cancelled, listener = w.submit()
    await w.model.answer(0, [7])
    await until(lambda: listener.deltas)
    w.client.cancel(cancelled)
    w.client.cancel(cancelled)
    await w.model.until(lambda: w.model.stops)
    assert w.model.stops == [w.model.requests[0].id]
    await until(lambda: not w.client._tasks)
    assert len(listener.deltas) == 1
    assert w.model.broken_off == 0
    # One that has not been sent yet is not sent at all.
    early, listener = w.submit()
    w.client.cancel(early)
    await until(lambda: not w.client._tasks)
    assert len(w.model.requests) == 1


async def test_where_a_stop_is_refused_the_stream_is_broken_off(w: World) -> None:
    await w.client.ready()
    request_id, _ = w.submit()
    await w.model.until(lambda: w.model.requests)
    w.model.refuses = "Request for unknown model: 'engine' has no available versions"
    w.client.cancel(request_id)
    await until(lambda: w.model.broken_off)
    await until(lambda: not w.client._tasks)


async def test_errors(w: World) -> None:
    await w.client.ready()
    (_, failed), (_, gone), (_, fine) = w.submit(), w.submit(), w.submit()
    await w.model.fail(0, "boom")
    await w.model.fail(1, "Request for unknown model: 'engine' is not found")
    await w.model.answer(2, [1, 2, 3, 4], final=True)
    assert (await failed.last()).finish_reason == "error"
    assert (await gone.last()) == TokenDelta(gone.deltas[0].request_id, [], "cancelled", error=UNAVAILABLE)
    assert (await fine.last()).finish_reason == "length"


async def test_what_cannot_be_honoured_never_leaves(w: World) -> None:
    await w.client.ready()
    for fields, named in (
        ({"sampling": SamplingParams(min_p=0.5)}, "min_p"),
        ({"prompt_token_ids": [5] * 2000}, "context length"),
        ({"sampling": SamplingParams(top_k=2000)}, "top_k"),
    ):
        _, listener = w.submit(**fields)
        delta = await listener.last()
        assert delta.invalid
        assert named in (delta.error or "")
    _, nothing = w.submit(max_tokens=0)
    assert (await nothing.last()).finish_reason == "length"
    assert w.model.requests == []


async def test_an_unloaded_engine_is_found_again(w: World, caplog: pytest.LogCaptureFixture) -> None:
    await w.client.ready()
    assert [info.model_name for info in w.infos] == ["tiny"]
    _, running = w.submit()
    await w.model.until(lambda: w.model.requests)
    w.model.ready = False
    await until(lambda: not w.client.connected)
    assert w.client.stats is None
    _, refused = w.submit()
    assert (await refused.last()).error == UNAVAILABLE
    # What runs goes on.
    await w.model.answer(0, [7], final=True)
    assert (await running.last()).finish_reason == "stop"
    waiting = asyncio.create_task(w.client.ready())
    write_engine(w.folder, model_name="other")
    w.model.ready = True
    await asyncio.wait_for(waiting, WAIT_S)
    assert [info.model_name for info in w.infos] == ["tiny", "other"]


async def test_an_engine_that_was_replaced_without_a_gap(w: World) -> None:
    await w.client.ready()
    write_engine(w.folder, model_name="other")
    await until(lambda: len(w.infos) == 2)
    assert w.infos[1].model_name == "other"


async def test_an_engine_that_cannot_be_described_is_told_of_once(w: World, caplog: pytest.LogCaptureFixture) -> None:
    (w.folder / "config.pbtxt").rename(w.folder / "aside")
    await until(lambda: "cannot be served" in caplog.text)
    assert not w.client.connected
    (w.folder / "aside").rename(w.folder / "config.pbtxt")
    await w.client.ready()
    assert caplog.text.count("cannot be served") == 1


async def test_an_engine_that_does_not_come(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_WAIT_S", 0.02)
    w.model.ready = False
    with pytest.raises(OverloadedError, match="not available"):
        await w.client.ready()


async def test_closing_tells_everybody(w: World) -> None:
    await w.client.ready()
    _, running = w.submit()
    await w.model.until(lambda: w.model.requests)
    await w.client.close()
    assert "shutting down" in ((await running.last()).error or "")
    assert w.model.stops == [w.model.requests[0].id]
    _, late = w.submit()
    assert "shutting down" in ((await late.last()).error or "")
    with pytest.raises(OverloadedError, match="shutting down"):
        await w.client.ready()


async def test_a_lost_server_ends_what_runs(w: World) -> None:
    await w.client.ready()
    _, running = w.submit()
    await w.model.until(lambda: w.model.requests)
    await w.server.stop(0)
    assert (await running.last()).error == UNAVAILABLE


async def test_a_proxy_in_the_environment_is_not_asked(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    await w.client.ready()
