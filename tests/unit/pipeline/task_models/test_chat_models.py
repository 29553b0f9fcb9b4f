"""Ways to chat models: BLS, gRPC, and what happens where one of them is full or missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from openai_bls.core.errors import ApiError, ModelAnswerError
from openai_bls.pipeline.task_models import chat_models
from openai_bls.pipeline.task_models.chat_models import ChatModels
from openai_bls.transport.model_calls import Array, Arrays, ModelCallError, NoStreamsError
from tests.fakes.model_calls import FakeModelCalls
from tests.unit.core_support import WAIT_S
from tests.unit.pipeline.task_models.task_support import model, tensor

DECOUPLED: dict[str, Any] = {"model_transaction_policy": {"decoupled": True}}
WHOLE = model("chat", "rag", max_batch_size=0)
STREAMING = model("chat", "rag", max_batch_size=0, **DECOUPLED)


def text(*values: bytes, name: str = "response") -> Arrays:
    return {name: np.array(values, dtype=np.object_)}


def calls_of(*, whole: Any = None, streamed: Any = None) -> FakeModelCalls:
    calls = FakeModelCalls()
    if whole is not None:
        calls.models["rag"] = whole
    if streamed is not None:
        calls.streams["rag"] = streamed
    return calls


async def chunks(models: ChatModels, which: Any = STREAMING) -> list[bytes]:
    return [chunk async for chunk in models.chunks(which, b"{}")]


async def test_tensors_of_other_names_and_a_batch_dimension() -> None:
    other = model(
        "chat",
        "rag",
        openai_input_request="IN",
        openai_output_response="OUT",
        input=[tensor("IN", dims=[1, 1])],
        output=[tensor("OUT")],
    )
    calls = calls_of(whole=lambda inputs: text(repr(inputs["IN"].shape).encode(), name="OUT"))
    assert await ChatModels(calls, 5).answer(other, b"ask") == b"(1, 1, 1)"


async def test_a_decoupled_model_is_called_by_grpc() -> None:
    calls = calls_of(streamed=lambda _: [text(b"a"), text(b"b")])
    assert await chunks(ChatModels(calls, 5)) == [b"a", b"b"]
    calls.streams["rag"] = lambda _: [text(b"all")]
    assert await ChatModels(calls, 5).answer(STREAMING, b"ask") == b"all"
    assert calls.closed_streams == 2


NUMBER = {"response": np.array([1.5], dtype=np.float32)}


@pytest.mark.parametrize("responses", [[], [text(b"a"), text(b"b")], [text(b"a", b"b")], [text()], [NUMBER]])
async def test_answers_that_are_none(responses: list[Arrays]) -> None:
    calls = calls_of(streamed=lambda _: responses)
    models = ChatModels(calls, 5)
    with pytest.raises(ApiError) as raised:
        await models.answer(STREAMING, b"ask")
    assert (raised.value.status, raised.value.code) == (502, "bad_model_answer")
    assert (models.in_progress, calls.closed_streams) == (0, 1)
    if not responses:
        with pytest.raises(ModelAnswerError):
            await chunks(models)


def failing(error: Exception) -> Any:
    def fail(_: Any) -> Arrays:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelCallError("the model 'rag': no index"), 500),
        (NoStreamsError("it is called over gRPC, but tritonserver runs with --allow-grpc=false"), 503),
    ],
)
async def test_failures(error: Exception, status: int) -> None:
    models = ChatModels(calls_of(whole=failing(error), streamed=failing(error)), 5)
    for attempt in (models.answer(WHOLE, b""), models.answer(STREAMING, b""), chunks(models)):
        with pytest.raises(ApiError) as raised:
            await attempt
        assert raised.value.status == status
    assert models.in_progress == 0


async def test_the_deadline() -> None:
    async def hang(_: Any) -> Arrays:
        await asyncio.Event().wait()
        raise AssertionError

    slow = model("chat", "rag", max_batch_size=0, openai_timeout_s="0.02")
    for which, models in ((WHOLE, ChatModels(calls_of(whole=hang), 0.01)), (slow, ChatModels(calls_of(whole=hang), 9))):
        with pytest.raises(ApiError, match=r"'rag' .* 0\.0[12] s") as raised:
            await models.answer(which, b"")
        assert (raised.value.status, models.in_progress) == (504, 0)


class Gate:
    """A model whose calls wait until they are let through."""

    def __init__(self) -> None:
        self.waiting = 0
        self.most = 0
        self.open = asyncio.Event()

    async def whole(self, _: Any) -> Arrays:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await self.open.wait()
        self.waiting -= 1
        return text(b"bls")

    async def streamed(self, _: Any) -> AsyncIterator[Arrays]:
        yield text(b"grpc")


async def test_more_calls_than_bls_has_room_for_go_over_grpc() -> None:
    gate = Gate()
    models = ChatModels(calls_of(whole=gate.whole, streamed=gate.streamed), WAIT_S)
    tasks = [asyncio.ensure_future(models.answer(WHOLE, b"")) for _ in range(20)]
    over_grpc = tasks[chat_models._MOST_BLS_CALLS :]
    assert await asyncio.gather(*over_grpc) == [b"grpc"] * len(over_grpc)
    assert models.in_progress == chat_models._MOST_BLS_CALLS
    gate.open.set()
    assert set(await asyncio.gather(*tasks[: chat_models._MOST_BLS_CALLS])) == {b"bls"}
    assert await models.answer(WHOLE, b"") == b"bls"


async def test_without_grpc_they_go_by_bls_all_the_same() -> None:
    gate = Gate()
    models = ChatModels(calls_of(whole=gate.whole, streamed=failing(NoStreamsError("no gRPC"))), WAIT_S)
    tasks = [asyncio.ensure_future(models.answer(WHOLE, b"")) for _ in range(20)]
    while gate.waiting < 20:
        await asyncio.sleep(0)
    gate.open.set()
    assert await asyncio.gather(*tasks) == [b"bls"] * 20


async def test_closing_the_chunks_closes_the_stream() -> None:
    async def endless(_: dict[str, Array]) -> AsyncIterator[Arrays]:
        while True:
            yield text(b"a")

    calls = calls_of(streamed=endless)
    models = ChatModels(calls, 5)
    async with aclosing(models.chunks(STREAMING, b"")) as stream:
        assert await stream.__anext__() == b"a"
        assert models.in_progress == 1
    assert (models.in_progress, calls.closed_streams) == (0, 1)
