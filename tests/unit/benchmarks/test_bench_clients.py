from __future__ import annotations

from collections.abc import Iterator

import pytest
from tritonclient.grpc import service_pb2

from benchmarks.client_grpc import infer_request
from benchmarks.driver import make_requests
from benchmarks.events import StreamFailure, grpc_payload
from benchmarks.stats import ClientReport, analyse
from benchmarks.target import Api, Plan, Target, grpc_target, http_target
from tests.unit.benchmarks.bench_stub import REFUSED, stub_server


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[int, int]]:
    with stub_server() as running:
        yield running


def _chat(port: int, model: str = "good") -> Target:
    return http_target("chat", f"http://127.0.0.1:{port}/v1", model=model)


def _drive(target: Target, *, requests: int = 6, timeout_s: float = 30.0) -> ClientReport:
    plan = Plan(target, 3, requests, 4, 20, timeout_s)
    traces, cpu_s = make_requests(plan)
    return analyse(traces, plan, cpu_s)


@pytest.mark.parametrize("api", ["chat", "generate_stream"])
def test_complete_streams(server: tuple[int, int], api: Api) -> None:
    path = "/v1" if api == "chat" else ""
    report = _drive(http_target(api, f"http://127.0.0.1:{server[0]}{path}", model="good"))
    assert not report.failures
    assert (report.requests, report.completion_tokens, report.text_events) == (6, 120, 120)
    assert len(report.gaps) == 6 * 19
    assert (report.first_token > 0).all()
    assert report.cpu_s > 0


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("missing", f"status 404: {REFUSED}"),
        ("breaks", "incomplete: connection closed"),
        ("reports", "error event: the engine failed"),
        ("short", "incomplete: 19 of 20 tokens"),
    ],
)
def test_failures(server: tuple[int, int], model: str, problem: str) -> None:
    report = _drive(_chat(server[0], model))
    assert report.failures == {problem: 6}


def test_a_stream_that_hangs_is_given_up(server: tuple[int, int]) -> None:
    report = _drive(_chat(server[0], "hangs"), requests=3, timeout_s=0.1)
    assert report.failures == {"incomplete: timed out": 3}


def test_grpc_messages() -> None:
    target = grpc_target("127.0.0.1:8001", model="m")
    request = service_pb2.ModelInferRequest.FromString(infer_request(target, b"{}"))
    assert request.model_name == "openai_bls"
    assert list(request.inputs[0].contents.bytes_contents) == [b"{}"]

    response = service_pb2.ModelStreamInferResponse()
    response.infer_response.raw_output_contents.append(b"\x02\0\0\0{}")
    assert grpc_payload(response.SerializeToString()) == b"{}"
    with pytest.raises(StreamFailure, match="no model"):
        grpc_payload(service_pb2.ModelStreamInferResponse(error_message="no model").SerializeToString())
