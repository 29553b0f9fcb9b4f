"""The client under load, and against servers that go away or talk nonsense: each request is answered once."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls_tensorrt_llm.legacy.decoding import UNAVAILABLE
from tests.unit.core_support import until
from tests_tensorrt_llm.legacy.test_client import Listener, Model, World, folder, response, running, w

__all__ = ["folder", "w"]


class Busy(Model):
    """Answers each request at once: its prompt's first token, as often as was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(7)
        self.answering: set[asyncio.Task[None]] = set()

    def taken(self, request: Any) -> None:
        inputs = dict(zip((tensor.name for tensor in request.inputs), request.raw_input_contents, strict=True))
        token = int(np.frombuffer(inputs["input_ids"], dtype=np.int32)[0])
        count = int(np.frombuffer(inputs["request_output_len"], dtype=np.int32)[0])
        task = asyncio.create_task(self._tokens(request.id, token, count))
        self.answering.add(task)
        task.add_done_callback(self.answering.discard)

    async def _tokens(self, triton_id: str, token: int, count: int) -> None:
        for left in reversed(range(count)):
            await asyncio.sleep(self.rng.random() / 1000)
            answers = self.live.get(triton_id)
            if answers is None:
                return
            # The last may bring nothing but the end.
            alone = not left and self.rng.random() < 0.5
            answers.put_nowait(response(triton_id, [token], final=not left and not alone))
            if alone:
                answers.put_nowait(response(triton_id, None, final=True))
        self.live.pop(triton_id, None)


async def test_a_thousand_requests(folder: Path) -> None:
    """At most 200 at a time; some are cancelled on the way."""
    rng = random.Random(3)
    places = asyncio.Semaphore(200)
    cancelled: list[Listener] = []

    async def one(w: World, number: int) -> None:
        async with places:
            token, count = number % 30 + 3, rng.randint(1, 6)
            request_id, listener = w.submit(prompt_token_ids=[token, 4], max_tokens=count)
            if number % 10 == 0:
                await asyncio.sleep(rng.random() / 500)
                if not listener.ended.is_set():
                    w.client.cancel(request_id)
                    cancelled.append(listener)
                return
            end = await listener.last()
            assert (listener.tokens, end.finish_reason, end.error) == ([token] * count, "length", None)

    async with running(folder, Busy()) as w:
        await w.client.ready()
        await asyncio.gather(*(one(w, number) for number in range(1000)))
        assert cancelled
        assert w.client.live == 0
        # Streams that were told to stop end by themselves; none is broken off.
        await until(lambda: not w.client._tasks)
        assert w.model.live == {}
        assert w.model.broken_off == 0
        assert not any(listener.ended.is_set() for listener in cancelled)


def half_have_heard(listeners: list[Listener]) -> bool:
    return 2 * sum(bool(listener.deltas) for listener in listeners) == len(listeners)


async def test_a_server_that_goes_away_and_comes_back(w: World) -> None:
    for _ in range(3):
        await w.client.ready()
        listeners = [w.submit()[1] for _ in range(50)]
        await w.model.until(lambda: len(w.model.requests) == 50)
        for at in range(0, 50, 2):
            await w.model.answer(at, [5])
        # Streams come in any order.
        await until(partial(half_have_heard, listeners))
        await w.server.stop(0)
        ends = [await listener.last() for listener in listeners]
        assert {(end.finish_reason, end.error) for end in ends} == {("cancelled", UNAVAILABLE)}
        await until(lambda: not w.client.connected)
        w.model = Model()
        w.server = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(w.model, w.server)
        assert w.server.add_insecure_port(f"127.0.0.1:{w.port}") == w.port
        await w.server.start()
    await w.client.ready()
    _, listener = w.submit()
    await w.model.answer(0, [5], final=True)
    assert (await listener.last()).finish_reason == "stop"


def raw(triton_id: str, **outputs: bytes) -> Any:
    """A response with these bytes."""
    answer = service_pb2.ModelInferResponse(id=triton_id)
    for name, content in outputs.items():
        answer.outputs.add(name=name, shape=[1, 1])
        answer.raw_output_contents.append(content)
    return service_pb2.ModelStreamInferResponse(infer_response=answer)


NONSENSE = {
    "half a number": {"output_ids": b"\x01\x02\x03"},
    "no length": {"output_ids": b"\x05\0\0\0", "sequence_length": b""},
    "half a log-probability": {"output_ids": b"\x05\0\0\0", "output_log_probs": b"\0\0"},
}


@pytest.mark.parametrize("what", NONSENSE)
async def test_nonsense_fails_one_request_and_stops_the_engine_on_it(w: World, what: str) -> None:
    await w.client.ready()
    _, bad = w.submit()
    _, good = w.submit()
    await w.model.until(lambda: len(w.model.requests) == 2)
    at = next(i for i, request in enumerate(w.model.requests) if request.id.endswith("-1"))
    bad_id = w.model.requests[at].id
    w.model.live[bad_id].put_nowait(raw(bad_id, **NONSENSE[what]))
    end = await bad.last()
    assert (end.finish_reason, end.error) == ("error", ENGINE_FAILED)
    # Else it would go on for nobody.
    await until(lambda: w.model.broken_off == 1)
    await w.model.answer(1 - at, [5], final=True)
    assert (await good.last()).finish_reason == "stop"
    assert w.client.live == 0


async def test_an_end_that_brings_nothing(w: World) -> None:
    """Even of a request that has had nothing, and even twice."""
    await w.client.ready()
    _, listener = w.submit()
    await w.model.until(lambda: w.model.requests)
    triton_id = w.model.requests[0].id
    for _ in range(2):
        w.model.live[triton_id].put_nowait(response(triton_id, None, final=True))
    end = await listener.last()
    assert (end.finish_reason, listener.tokens) == ("stop", [])
    await until(lambda: not w.client._tasks)
