from __future__ import annotations

from collections.abc import Iterator

import pytest
from tritonclient.grpc import service_pb2

from benchmarks.client_grpc import infer_request
from benchmarks.driver import make_requests
from benchmarks.events import StreamFailure, grpc_payload
from benchmarks.stats import ClientReport, analyse
from benchmarks.target import Plan, grpc_target
from tests.unit.benchmarks.grpc_stub import grpc_server


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with grpc_server() as port:
        yield port


def _drive(port: int, model: str = "bare", *, requests: int = 7, seconds: float | None = None) -> ClientReport:
    target = grpc_target(f"127.0.0.1:{port}", triton_model=model, dialect="ids")
    plan = Plan(target, 3, requests, 4, 20, timeout_s=20.0, seconds=seconds)
    traces, cpu_s = make_requests(plan)
    return analyse(traces, plan, cpu_s)


def test_every_message_of_every_call(port: int) -> None:
    report = _drive(port)
    assert not report.failures
    assert (report.requests, report.completion_tokens, report.text_events) == (7, 140, 140)


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("aborts", "incomplete: status 13 it broke"),
        ("reports", "error event: the engine failed"),
    ],
)
def test_failures(port: int, model: str, problem: str) -> None:
    assert _drive(port, model).failures == {problem: 7}


def test_a_run_that_is_limited_in_time(port: int) -> None:
    report = _drive(port, requests=10**6, seconds=0.2)
    assert not report.failures
    assert 3 <= report.requests < 10**6
    assert _drive(port, requests=10**6, seconds=0.0).requests == 3


def test_nobody_there() -> None:
    with pytest.raises(OSError, match=r"."):
        _drive(1)


def test_requests_of_every_dialect() -> None:
    ids = infer_request(grpc_target("h:1", triton_model="bare", dialect="ids"), b'{"input_ids":[3,4],"n":5}')
    message = service_pb2.ModelInferRequest.FromString(ids)
    assert [(one.name, one.datatype, list(one.shape)) for one in message.inputs] == [
        ("input_ids", "INT32", [2]),
        ("n", "INT32", [1]),
    ]
    assert list(message.inputs[0].contents.int_contents) == [3, 4]
    text = infer_request(grpc_target("h:1", dialect="text"), '{"text_input":"é"}'.encode())
    [tensor] = service_pb2.ModelInferRequest.FromString(text).inputs
    assert (tensor.datatype, list(tensor.contents.bytes_contents)) == ("BYTES", ["é".encode()])


def test_ids_and_responses_without_output() -> None:
    response = service_pb2.ModelStreamInferResponse()
    with pytest.raises(StreamFailure, match="without an output"):
        grpc_payload(response.SerializeToString())
    output = response.infer_response.outputs.add()
    output.datatype = "INT32"
    response.infer_response.raw_output_contents.append(b"\x05\x01\0\0")
    assert grpc_payload(response.SerializeToString()) == b"261"
