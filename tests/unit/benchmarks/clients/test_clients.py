"""The HTTP and gRPC clients against small servers: every token is counted, every failure named."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.clients.driver import make_requests
from benchmarks.clients.http import run_http
from benchmarks.clients.stats import ClientReport, analyse
from benchmarks.clients.target import Plan, Target, grpc_target, http_target
from tests.unit.benchmarks.clients.bench_stub import REFUSED, stub_server
from tests.unit.benchmarks.clients.grpc_stub import grpc_server


@pytest.fixture(scope="module")
def http_port() -> Iterator[int]:
    with stub_server() as (port, _):
        yield port


@pytest.fixture(scope="module")
def grpc_port() -> Iterator[int]:
    with grpc_server() as port:
        yield port


@pytest.fixture(params=["chat", "generate_stream", "grpc"])
def target(request: pytest.FixtureRequest, http_port: int, grpc_port: int) -> Target:
    """Each kind of target that answers as it should."""
    if request.param == "grpc":
        return grpc_target(f"127.0.0.1:{grpc_port}", triton_model="bare", dialect="ids")
    path = "/v1" if request.param == "chat" else ""
    return http_target(request.param, f"http://127.0.0.1:{http_port}{path}", model="good")


def _plan(target: Target) -> Plan:
    return Plan(target, concurrency=3, requests=7, prompt_words=4, output_tokens=20, timeout_s=20.0)


def _drive(plan: Plan) -> ClientReport:
    traces, cpu_s = make_requests(plan)
    return analyse(traces, plan, cpu_s)


def test_every_token_is_counted(target: Target) -> None:
    report = _drive(_plan(target))
    assert not report.failures
    assert (report.requests, report.completion_tokens, report.text_events) == (7, 140, 140)
    assert len(report.gaps) == 7 * 19
    assert (report.first_token > 0).all()
    assert report.cpu_s > 0


def test_a_run_limited_in_time(target: Target) -> None:
    plan = replace(_plan(target), requests=10**6, output_tokens=5, seconds=0.2)
    report = _drive(plan)
    assert not report.failures
    # Each of the three connections has one at least, which on a busy machine takes all of the time.
    assert 3 <= report.requests < 10**6
    assert _drive(replace(plan, seconds=0.0)).requests == 3


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("missing", f"status 404: {REFUSED}"),
        ("breaks", "incomplete: connection closed"),
        ("reports", "error event: the engine failed"),
        ("short", "incomplete: 19 of 20 tokens"),
        ("hangs", "incomplete: timed out"),
    ],
)
def test_http_failures(http_port: int, model: str, problem: str) -> None:
    plan = _plan(http_target("chat", f"http://127.0.0.1:{http_port}/v1", model=model))
    report = _drive(replace(plan, timeout_s=0.1) if model == "hangs" else plan)
    assert report.failures == {problem: 7}


@pytest.mark.parametrize(
    ("model", "problem"),
    [("aborts", "incomplete: status 13 it broke"), ("reports", "error event: the engine failed")],
)
def test_grpc_failures(grpc_port: int, model: str, problem: str) -> None:
    target = grpc_target(f"127.0.0.1:{grpc_port}", triton_model=model, dialect="ids")
    assert _drive(_plan(target)).failures == {problem: 7}


def test_no_grpc_server() -> None:
    with pytest.raises(OSError, match=r"."):
        _drive(_plan(grpc_target("127.0.0.1:1", triton_model="bare", dialect="ids")))


def test_a_connection_is_used_again() -> None:
    opened = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        writer.close()

    async def drive() -> int:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            plan = replace(_plan(http_target("chat", f"http://127.0.0.1:{port}/v1", model="good")), concurrency=2)
            return len(await run_http(plan))

    assert asyncio.run(drive()) == 7
    assert opened == 2
