from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from benchmarks import load
from benchmarks.client_grpc import grpc_payload, infer_request
from benchmarks.driver import divided, make_requests
from benchmarks.events import StreamFailure
from benchmarks.probe import ProbeError, probe
from benchmarks.stats import ClientReport, analyse
from benchmarks.target import Layout, Plan, Target, grpc_target, http_target
from tests.unit.benchmarks.bench_stub import REFUSED, stub_server


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[int, int]]:
    with stub_server() as running:
        yield running


def _chat(port: int, model: str = "good") -> Target:
    return http_target("chat", f"http://127.0.0.1:{port}/v1", model=model)


def _drive(target: Target, layout: Layout, *, requests: int = 6, timeout_s: float = 30.0) -> ClientReport:
    plan = Plan(target, 3, requests, 4, 20, layout, timeout_s)
    traces, cpu_s = make_requests(plan)
    return analyse(traces, plan, cpu_s)


def test_chat(server: tuple[int, int]) -> None:
    report = _drive(_chat(server[0]), Layout(1, 3))
    assert not report.failures
    assert (report.requests, report.completion_tokens, report.text_events) == (6, 120, 120)
    assert len(report.gaps) == 6 * 19
    assert (report.first_token > 0).all()
    assert report.cpu_s > 0


def test_generate_stream(server: tuple[int, int]) -> None:
    target = http_target("generate_stream", f"http://127.0.0.1:{server[0]}", model="good")
    report = _drive(target, Layout(1, 2))
    assert not report.failures
    assert report.text_events == 120


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
    report = _drive(_chat(server[0], model), Layout(1, 3))
    assert report.failures == {problem: 6}


def test_a_stream_that_hangs_is_given_up(server: tuple[int, int]) -> None:
    report = _drive(_chat(server[0], "hangs"), Layout(1, 3), requests=3, timeout_s=0.1)
    assert report.failures == {"incomplete: timed out": 3}


def test_probe(server: tuple[int, int]) -> None:
    learned = probe(_chat(server[0]), prompt_tokens=64)
    assert learned.layout == Layout(lead=1, trail=3)
    # The stub counts words, and 10 and the message's own besides.
    assert 40 <= learned.prompt_words <= 54


def test_probe_reports(server: tuple[int, int]) -> None:
    with pytest.raises(ProbeError, match=REFUSED):
        probe(_chat(server[0], "missing"), 8)


def test_command(server: tuple[int, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port, pid = server
    file = tmp_path / "out.json"
    base = ["--url", f"http://127.0.0.1:{port}/v1", "--output-tokens", "5", "--requests", "8", "--repeat", "2"]
    code = load.main([*base, "--model", "good", "--concurrency", "1,4", "--json", str(file), "--client-processes", "2"])
    output = capsys.readouterr().out
    assert code == 0
    assert "tokens/s" in output
    [[*measurements]] = json.loads(file.read_bytes())["series"].values()
    assert [one["concurrency"] for one in measurements] == [1, 4, 1, 4]
    assert all(one["requests"] == 8 and not one["failed"] and one["tokens"] == 40 for one in measurements)
    assert load.server_pid("auto", _chat(port)) == pid


def test_command_fails(server: tuple[int, int], capsys: pytest.CaptureFixture[str]) -> None:
    base = ["--url", f"http://127.0.0.1:{server[0]}/v1", "--concurrency", "2", "--requests", "2", "--repeat", "1"]
    assert load.main([*base, "--model", "short", "--pid", str(server[1])]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert load.main([*base, "--model", "missing"]) == 2
    assert load.main(["--url", "http://127.0.0.1:1/v1"]) == 2
    assert load.main(["--url", "https://127.0.0.1/v1"]) == 2


def test_pid_of_a_remote_server() -> None:
    assert load.server_pid("auto", replace(_chat(1), host="192.0.2.1")) is None
    assert load.server_pid("12", _chat(1)) == 12


def test_plans_are_divided() -> None:
    plan = Plan(_chat(1), 5, 11, 4, 20, seed=3)
    parts = divided(plan, 2)
    assert [(part.concurrency, part.requests) for part in parts] == [(3, 6), (2, 5)]
    assert len({part.seed for part in parts}) == 2
    assert len(divided(plan, 9)) == 5


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
    with pytest.raises(ValueError, match="host:port"):
        grpc_target("127.0.0.1", model="m")
