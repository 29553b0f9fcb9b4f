from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from openai_bls.core.engine_types import GenerationRequest, TokenDelta
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.settings import EngineSettings
from openai_bls.transport.ipc.server import ExchangeServer
from openai_bls.triton_models.tensorrt_llm.frontend import Frontend
from tests.unit.core_support import WAIT_S, FakeEngine, exchange_address
from tests.unit.triton_models.replies import TensorReply
from tests.waiting import until


class Bench:
    def __init__(self, engine_class: type[FakeEngine] = FakeEngine) -> None:
        self.exchange = ExchangeServer(exchange_address())
        self.engine = engine_class(self.exchange.on_step)
        self.exchange.start(self.engine)
        self.frontend = Frontend(self.exchange, self.engine.info, EngineSettings())

    def open(self, triton_id: str = "", **values: Any) -> TensorReply:
        stream = TensorReply()
        given = {"input_ids": [[1, 2]], "request_output_len": [5], "streaming": [True], **values}
        self.frontend.open({name: np.array(value) for name, value in given.items()}, triton_id, stream)
        return stream

    def step(self, at: int, tokens: list[int], reason: Any = None) -> None:
        self.engine.step(TokenDelta(self.engine.submitted[at].request_id, tokens, reason))

    def close(self) -> None:
        self.engine.close()
        self.frontend.close()
        self.exchange.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()
    assert bench.engine.live == {}


def test_a_stop_request_ends_the_request_of_its_id_and_no_other(bench: Bench) -> None:
    first, second = bench.open("a"), bench.open("b")
    stop = bench.open("a", stop=[True])
    assert (stop.sent, stop.finals) == ([], 1)
    assert (first.finals, second.finals) == (1, 0)
    assert bench.engine.cancelled == [bench.engine.submitted[0].request_id]
    bench.step(1, [3], "stop")
    assert second.token_ids() == [[3]]
    # A stop for nobody is no error, but one without an id is.
    assert bench.open("x", stop=[True]).finals == 1
    submitted = len(bench.engine.submitted)
    for bad in ({"stop": [True]}, {"request_output_len": [1, 2]}):
        with pytest.raises(InvalidRequestError):
            bench.open("", **bad)
    assert len(bench.engine.submitted) == submitted


def test_a_stopped_answer_that_is_not_streamed_is_sent_as_far_as_it_has_come(bench: Bench) -> None:
    first = bench.open("a", streaming=[False], num_return_sequences=[2])
    bench.step(0, [3, 4])
    bench.step(1, [5], "stop")
    bench.open("a", stop=[True])
    assert (first.token_ids(), first.finals) == ([[5], [3, 4]], 1)
    bench.step(0, [6], "stop")
    assert len(first.sent) == 2


def test_a_client_that_has_gone_is_noticed(bench: Bench) -> None:
    stream, other = bench.open(num_return_sequences=[2]), bench.open()
    stream.gone = True
    stream.wait_end()
    ids = [request.request_id for request in bench.engine.submitted]
    bench.engine.wait_for(lambda: set(ids[:2]) <= set(bench.engine.cancelled))
    assert stream.finals == 1
    assert stream.error is None
    assert ids[2] not in bench.engine.cancelled
    assert other.finals == 0


def test_one_failed_sequence_stops_the_engines_work_on_the_others(bench: Bench) -> None:
    stream = bench.open(num_return_sequences=[3])
    bench.step(1, [], "error")
    assert stream.error is not None
    assert stream.finals == 1
    assert bench.engine.live == {}


class _Refusing(FakeEngine):
    """Answers a submission of the prompt [0] at once, with an error."""

    def submit(self, request: GenerationRequest) -> None:
        super().submit(request)
        if request.prompt_token_ids == [0]:
            self.step(TokenDelta(request.request_id, [], "error", None, "bad id", True))


@pytest.mark.parametrize("rows", [[[0], [1]], [[1], [0]], [[1], [0], [2]]])
def test_a_row_that_is_refused_at_once_takes_the_others_with_it(rows: list[list[int]]) -> None:
    bench = Bench(_Refusing)
    batch = len(rows)
    stream = bench.open(input_ids=rows, request_output_len=[5] * batch, streaming=[True] * batch)
    assert stream.error is not None
    assert stream.error.status == 400
    assert bench.engine.live == {}
    bench.close()


class _Stopping(FakeEngine):
    """A stop request comes in while the first sequence is being submitted."""

    stop: Callable[[], object]

    def submit(self, request: GenerationRequest) -> None:
        super().submit(request)
        if len(self.submitted) == 1:
            self.stop()


def test_a_request_that_is_stopped_while_it_is_submitted() -> None:
    bench = Bench(_Stopping)
    assert isinstance(bench.engine, _Stopping)
    bench.engine.stop = lambda: bench.open("a", stop=[True])
    stream = bench.open("a", num_return_sequences=[3])
    assert (stream.sent, stream.error, stream.finals) == ([], None, 1)
    assert len(bench.engine.submitted) == 1
    assert bench.engine.live == {}
    bench.close()


def test_an_engine_that_closes_ends_every_stream() -> None:
    bench = Bench()
    streams = [bench.open() for _ in range(3)]
    bench.close()
    assert [stream.error.status for stream in streams if stream.error is not None] == [503] * 3
    assert [stream.finals for stream in streams] == [1] * 3


def test_a_close_while_the_watch_is_not_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at its beginning: nobody wakes it up later."""
    watch = Frontend._watch

    def late(frontend: Frontend) -> None:
        until(lambda: frontend._closed)
        watch(frontend)

    monkeypatch.setattr(Frontend, "_watch", late)
    closing = threading.Thread(target=Bench().close, daemon=True)
    closing.start()
    closing.join(WAIT_S)
    assert not closing.is_alive()


def test_a_stream_that_raises_does_not_disturb_another(bench: Bench) -> None:
    broken, other = bench.open(), bench.open()

    def send(body: Mapping[str, Any], *, final: bool = False) -> None:
        raise RuntimeError("gone")

    broken.send = send  # type: ignore[method-assign]
    ids = [request.request_id for request in bench.engine.submitted]
    bench.engine.step(TokenDelta(ids[0], [1]), TokenDelta(ids[1], [2]))
    assert other.token_ids() == [[2]]
