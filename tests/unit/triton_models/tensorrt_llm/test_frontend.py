from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from openai_bls.core.engine_types import GenerationRequest, TokenDelta
from openai_bls.core.errors import ApiError, InvalidRequestError
from openai_bls.core.settings import TensorRtLlmSettings
from openai_bls.transport.ipc.server import ExchangeServer
from openai_bls.triton_models.tensorrt_llm.frontend import OfficialDoor
from tests.unit.core_support import WAIT_S, FakeEngine, exchange_address


class FakeStream:
    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.errors: list[ApiError] = []
        self.finals = 0
        self.gone = False
        self.changed = threading.Condition()

    def send(self, arrays: Mapping[str, Any], *, final: bool = False) -> None:
        assert not self.finals
        self.sent.append(arrays["output_ids"].reshape(-1).tolist())
        self._end(final)

    def fail(self, error: ApiError) -> None:
        self.errors.append(error)
        self._end(True)

    def close(self) -> None:
        self._end(not self.finals)

    def is_cancelled(self) -> bool:
        return self.gone

    def _end(self, final: bool) -> None:
        with self.changed:
            self.finals += final
            self.changed.notify_all()

    def wait_end(self) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.finals, WAIT_S)


class Door:
    def __init__(self, engine_class: type[FakeEngine] = FakeEngine) -> None:
        self.exchange = ExchangeServer(exchange_address())
        self.engine = engine_class(self.exchange.on_step)
        self.exchange.start(self.engine)
        self.door = OfficialDoor(self.exchange, self.engine.info, TensorRtLlmSettings())

    def open(self, triton_id: str = "", **values: Any) -> FakeStream:
        stream = FakeStream()
        given = {"input_ids": [[1, 2]], "request_output_len": [5], "streaming": [True], **values}
        self.door.open({name: np.array(value) for name, value in given.items()}, triton_id, stream)
        return stream

    def step(self, at: int, tokens: list[int], reason: Any = None) -> None:
        self.engine.step(TokenDelta(self.engine.submitted[at].request_id, tokens, reason))

    def close(self) -> None:
        self.engine.close()
        self.door.close()
        self.exchange.close()


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    yield door
    door.close()
    assert door.engine.live == {}


def test_tokens_reach_their_own_stream(door: Door) -> None:
    first, second = door.open(), door.open(input_ids=[[7]])
    assert [r.prompt_token_ids for r in door.engine.submitted] == [[1, 2], [7]]
    door.step(1, [9])
    door.step(0, [4])
    door.step(0, [5], "stop")
    door.step(1, [], "length")
    assert first.sent == [[4], [5]]
    assert second.sent == [[9], []]
    assert (first.finals, second.finals) == (1, 1)
    assert door.engine.cancelled == []


def test_a_bad_request_sends_nothing(door: Door) -> None:
    with pytest.raises(InvalidRequestError):
        door.open(request_output_len=[1, 2])
    assert door.engine.submitted == []


def test_a_stop_request_ends_the_request_of_its_id_and_no_other(door: Door) -> None:
    first, second = door.open("a"), door.open("b")
    stop = door.open("a", stop=[True])
    assert (stop.sent, stop.finals) == ([], 1)
    assert (first.finals, second.finals) == (1, 0)
    assert door.engine.cancelled == [door.engine.submitted[0].request_id]
    door.step(1, [3], "stop")
    assert second.sent == [[3]]


def test_a_stop_for_nobody_is_no_error_but_one_without_id_is(door: Door) -> None:
    assert door.open("x", stop=[True]).finals == 1
    with pytest.raises(InvalidRequestError):
        door.open("", stop=[True])


def test_a_client_that_has_gone_is_noticed(door: Door) -> None:
    stream, other = door.open(num_return_sequences=[2]), door.open()
    stream.gone = True
    stream.wait_end()
    ids = [request.request_id for request in door.engine.submitted]
    door.engine.wait_for(lambda: set(ids[:2]) <= set(door.engine.cancelled))
    assert stream.finals == 1
    assert stream.errors == []
    assert ids[2] not in door.engine.cancelled
    assert other.finals == 0


def test_one_failed_sequence_stops_the_engines_work_on_the_others(door: Door) -> None:
    stream = door.open(num_return_sequences=[3])
    door.step(1, [], "error")
    assert len(stream.errors) == 1
    assert stream.finals == 1
    assert door.engine.live == {}


class _Refusing(FakeEngine):
    """Answers a submission of the prompt [0] at once, with an error."""

    def submit(self, request: GenerationRequest) -> None:
        super().submit(request)
        if request.prompt_token_ids == [0]:
            self.step(TokenDelta(request.request_id, [], "error", None, "bad id", True))


@pytest.mark.parametrize("rows", [[[0], [1]], [[1], [0]], [[1], [0], [2]]])
def test_a_row_that_is_refused_at_once_takes_the_others_with_it(rows: list[list[int]]) -> None:
    door = Door(_Refusing)
    batch = len(rows)
    stream = door.open(input_ids=rows, request_output_len=[5] * batch, streaming=[True] * batch)
    assert [error.status for error in stream.errors] == [400]
    assert door.engine.live == {}
    door.close()


class _Stopping(FakeEngine):
    """A stop request comes in while the first sequence is being submitted."""

    stop: Callable[[], object]

    def submit(self, request: GenerationRequest) -> None:
        super().submit(request)
        if len(self.submitted) == 1:
            self.stop()


def test_a_request_that_is_stopped_while_it_is_submitted() -> None:
    door = Door(_Stopping)
    assert isinstance(door.engine, _Stopping)
    door.engine.stop = lambda: door.open("a", stop=[True])
    stream = door.open("a", num_return_sequences=[3])
    assert (stream.sent, stream.errors, stream.finals) == ([], [], 1)
    assert len(door.engine.submitted) == 1
    assert door.engine.live == {}
    door.close()


def test_an_engine_that_closes_ends_every_stream() -> None:
    door = Door()
    streams = [door.open() for _ in range(3)]
    door.close()
    assert [[error.status for error in stream.errors] for stream in streams] == [[503]] * 3
    assert [stream.finals for stream in streams] == [1] * 3


def test_a_stream_that_raises_does_not_disturb_another(door: Door) -> None:
    broken, other = door.open(), door.open()

    def send(arrays: Mapping[str, Any], *, final: bool = False) -> None:
        raise RuntimeError("gone")

    broken.send = send  # type: ignore[method-assign]
    ids = [request.request_id for request in door.engine.submitted]
    door.engine.step(TokenDelta(ids[0], [1]), TokenDelta(ids[1], [2]))
    assert other.sent == [[2]]


def test_many_threads_open_and_finish() -> None:
    door = Door()
    streams: list[FakeStream] = []

    def work(run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def client() -> None:
        for _ in range(20):
            streams.append(door.open())

    threads = [work(client) for _ in range(4)]
    for thread in threads:
        thread.join(WAIT_S)
    for at in range(80):
        door.step(at, [at], "length")
    assert sorted(stream.sent[0][0] for stream in streams) == list(range(80))
    assert all(stream.finals == 1 for stream in streams)
    door.close()
