from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from openai_bls.api.chat import serving
from openai_bls.core.engine import EngineStats
from openai_bls.core.errors import EngineError, InvalidRequestError
from openai_bls.core.request_record import Outcome, RequestRecord
from openai_bls.core.usage import Usage
from openai_bls.pipeline.metrics import Metrics, merge, render
from openai_bls.pipeline.metrics_instances import Peers
from openai_bls.transport.ipc.frames import address
from openai_bls.transport.ipc.listener import is_ours
from tests.unit.core_support import EOS, WAIT_S, Bench, chat, exchange_address

CHAT = {"model": "tiny", "endpoint": "chat.completions"}


def lines(text: bytes) -> dict[str, float]:
    """`name{label="value",...}`, the labels sorted → value, as Prometheus itself would read them."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.documentation
        for sample in family.samples:
            key = _key(sample.name, sample.labels)
            assert key not in found
            found[key] = sample.value
    return found


def _key(name: str, labels: dict[str, str]) -> str:
    pairs = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{pairs}}}" if pairs else name


def of(metrics: Metrics) -> dict[str, float]:
    return lines(asyncio.run(metrics.scrape()))


def line(name: str, **labels: str) -> str:
    return _key(f"openai_bls_{name}", labels)


def record(outcome: Outcome = "done", **changes: Any) -> RequestRecord:
    values: dict[str, Any] = {
        "endpoint": "chat.completions",
        "model": "tiny",
        "outcome": outcome,
        "finish_reasons": ["stop"] if outcome == "done" else [],
        "usage": Usage.of(10, 5, cached=4, reasoning=2),
        "began_at": 100.0,
        "first_token_at": 100.05,
        "ended_at": 102.05,
    }
    return RequestRecord(**(values | changes))


def new() -> Metrics:
    return Metrics(Bench().service)


def test_a_request_that_ended_well() -> None:
    metrics = new()
    metrics.ended(record())
    found = of(metrics)
    assert found[line("requests_total", **CHAT, outcome="done")] == 1
    assert found[line("finished_sequences_total", **CHAT, finish_reason="stop")] == 1
    assert found[line("prompt_tokens_total", **CHAT)] == 10
    assert found[line("cached_prompt_tokens_total", **CHAT)] == 4
    assert found[line("generation_tokens_total", **CHAT)] == 5
    assert found[line("reasoning_tokens_total", **CHAT)] == 2
    assert found[line("time_to_first_token_seconds_sum", **CHAT)] == pytest.approx(0.05)
    assert found[line("time_to_first_token_seconds_bucket", **CHAT, le="0.04")] == 0
    assert found[line("time_to_first_token_seconds_bucket", **CHAT, le="0.06")] == 1
    assert found[line("e2e_request_latency_seconds_sum", **CHAT)] == pytest.approx(2.05)
    # Four gaps in two seconds.
    assert found[line("time_per_output_token_seconds_sum", **CHAT)] == pytest.approx(0.5)
    assert not any("_created" in key for key in found)


def test_choices_run_side_by_side() -> None:
    metrics = new()
    metrics.ended(record(finish_reasons=["stop", "length"], usage=Usage.of(10, 10)))
    found = of(metrics)
    assert found[line("requests_total", **CHAT, outcome="done")] == 1
    assert found[line("finished_sequences_total", **CHAT, finish_reason="length")] == 1
    assert found[line("time_per_output_token_seconds_sum", **CHAT)] == pytest.approx(0.5)


@pytest.mark.parametrize("first_token_at", [None, 100.05])
def test_a_single_token_has_no_pace(first_token_at: float | None) -> None:
    metrics = new()
    metrics.ended(record(usage=Usage.of(10, 1), first_token_at=first_token_at))
    found = of(metrics)
    assert line("time_per_output_token_seconds_count", **CHAT) not in found
    assert (line("time_to_first_token_seconds_count", **CHAT) in found) == (first_token_at is not None)


@pytest.mark.parametrize(("outcome", "label"), [("cancelled", "cancelled"), (EngineError("x"), "500")])
def test_what_did_not_end_well_counts_without_a_latency(outcome: Outcome, label: str) -> None:
    metrics = new()
    metrics.ended(record(outcome))
    found = of(metrics)
    assert found[line("requests_total", **CHAT, outcome=label)] == 1
    assert found[line("generation_tokens_total", **CHAT)] == 5
    assert line("e2e_request_latency_seconds_count", **CHAT) not in found


def test_refused_requests_count_once_by_status() -> None:
    metrics = new()
    error = InvalidRequestError("x")
    for _ in range(2):
        metrics.refused("chat.completions", InvalidRequestError("x"))
    metrics.refused("tokenize", EngineError("x"))
    metrics.refused("", error)
    found = of(metrics)
    assert found[line("requests_total", model="", endpoint="chat.completions", outcome="400")] == 2
    assert found[line("requests_total", model="", endpoint="tokenize", outcome="500")] == 1
    assert found[line("requests_total", model="", endpoint="other", outcome="400")] == 1


def test_an_admitted_requests_error_is_not_counted_again_when_it_is_answered() -> None:
    metrics = new()
    error = EngineError("x")
    metrics.ended(record(error))
    metrics.refused("chat.completions", error)
    found = of(metrics)
    assert sum(value for key, value in found.items() if key.startswith("openai_bls_requests_total")) == 1


async def test_a_service_feeds_them() -> None:
    bench = Bench()
    metrics = Metrics(bench.service)
    bench.service.on_end = metrics.ended
    answer = asyncio.create_task(serving.answer(bench.service, chat()))
    while not bench.engine.requests:
        await asyncio.sleep(0)
    assert lines(await metrics.scrape())["openai_bls_requests_in_progress"] == 1
    bench.engine.deliver(0, "ab", cached_tokens=1)
    bench.engine.deliver(0, "c", "stop", stop_token_id=EOS)
    await answer
    found = lines(await metrics.scrape())
    assert found["openai_bls_requests_in_progress"] == 0
    assert found[line("requests_total", **CHAT, outcome="done")] == 1
    assert found[line("generation_tokens_total", **CHAT)] == 4
    assert found[line("cached_prompt_tokens_total", **CHAT)] == 1
    for name in ("time_to_first_token", "e2e_request_latency", "time_per_output_token"):
        assert found[line(f"{name}_seconds_count", **CHAT)] == 1


def test_the_engines_load_is_told_where_it_is_known() -> None:
    bench = Bench()
    metrics = Metrics(bench.service)
    up = line("engine_up", model="tiny")
    assert {key: value for key, value in of(metrics).items() if "engine" in key} == {up: 1}
    bench.engine.stats = EngineStats(3, 2, 0.25, 9, 40)
    found = of(metrics)
    assert found[up] == 1
    assert found[line("engine_sequences_running", model="tiny")] == 3
    assert found[line("engine_sequences_waiting", model="tiny")] == 2
    assert found[line("engine_kv_cache_usage_ratio", model="tiny")] == 0.25
    assert found[line("engine_steps_total", model="tiny")] == 9
    assert found[line("engine_generated_tokens_total", model="tiny")] == 40
    bench.engine.stats = EngineStats(0, 0, 0.0, 9, 40, failed=True)
    assert of(metrics)[up] == 0
    bench.engine.stats = None
    bench.engine.connected = False
    assert of(metrics)[up] == 0


def test_several_instances_are_summed_but_share_the_engine() -> None:
    benches = [Bench(), Bench()]
    all_metrics = [Metrics(bench.service) for bench in benches]
    for bench, running in zip(benches, (3, 4), strict=True):
        bench.engine.stats = EngineStats(running, 0, 0.5, 9, 40)
        bench.service.count(2)
    all_metrics[0].ended(record())
    all_metrics[1].ended(record())
    all_metrics[1].ended(record("cancelled"))
    found = lines(render(merge(metrics.families() for metrics in all_metrics)))
    assert found["openai_bls_requests_in_progress"] == 4
    assert found[line("requests_total", **CHAT, outcome="done")] == 2
    assert found[line("requests_total", **CHAT, outcome="cancelled")] == 1
    assert found[line("e2e_request_latency_seconds_bucket", **CHAT, le="+Inf")] == 2
    assert found[line("engine_sequences_running", model="tiny")] == 4
    assert found[line("engine_kv_cache_usage_ratio", model="tiny")] == 0.5
    # Merging one instance changes nothing.
    alone = all_metrics[1].families()
    assert merge([alone]) == alone


def test_instances_find_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not another test's.
    family = exchange_address()
    monkeypatch.setattr("openai_bls.pipeline.metrics_instances.address", lambda name, pid: family)

    async def main() -> None:
        all_metrics = [new() for _ in range(3)]
        peers = [Peers(metrics, 1) for metrics in all_metrics]
        for metrics, peer in zip(all_metrics, peers, strict=True):
            await peer.start()
            metrics.ended(record())
        key = line("requests_total", **CHAT, outcome="done")
        for metrics in all_metrics:
            assert lines(await metrics.scrape())[key] == 3
        peers[0].close()
        assert lines(await all_metrics[1].scrape())[key] == 2
        for peer in peers[1:]:
            peer.close()

    uvloop.run(main())


def test_an_instance_that_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    family = exchange_address()
    monkeypatch.setattr("openai_bls.pipeline.metrics_instances.address", lambda name, pid: family)
    monkeypatch.setattr("openai_bls.pipeline.metrics_instances._WAIT_S", 0.01)

    async def main() -> None:
        metrics = new()
        peer = Peers(metrics, 1)
        await peer.start()
        metrics.ended(record())
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
            silent.bind(f"{family}/silent")
            silent.listen()
            assert await peer.ask() == [[]]
            found = lines(await metrics.scrape())
        assert found[line("requests_total", **CHAT, outcome="done")] == 1
        peer.close()

    uvloop.run(main())


@pytest.mark.parametrize("uid", [0, os.getuid(), os.getuid() + 1])
def test_whose_process_is_at_the_other_end(uid: int) -> None:
    asked: list[tuple[int, int]] = []

    def getsockopt(level: int, option: int, size: int) -> bytes:
        asked.append((level, option))
        return struct.pack("3i", 123, uid, 456)

    connection: Any = SimpleNamespace(getsockopt=getsockopt)
    assert is_ours(connection) == (uid in (0, os.getuid()))
    assert asked == [(socket.SOL_SOCKET, socket.SO_PEERCRED)]


@pytest.mark.parametrize("end", ["asking", "answering"])
def test_other_users_are_neither_told_nor_believed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    family = exchange_address()
    monkeypatch.setattr("openai_bls.pipeline.metrics_instances.address", lambda name, pid: family)

    def of_another_user(connection: socket.socket) -> bool:
        # Whoever asks has made the socket itself, whoever answers has the event loop's view of one.
        asking = isinstance(connection, socket.socket)
        return is_ours(connection) and asking != (end == "asking")

    monkeypatch.setattr("openai_bls.pipeline.metrics_instances.is_ours", of_another_user)

    async def main() -> None:
        peers = [Peers(new(), 1) for _ in range(2)]
        for peer in peers:
            await peer.start()
        assert await peers[0].ask() == [[]]
        for peer in peers:
            peer.close()

    uvloop.run(main())
    assert "another user" in caplog.text


def test_an_instance_that_says_too_much_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    family = exchange_address()
    monkeypatch.setattr("openai_bls.pipeline.metrics_instances.address", lambda name, pid: family)
    monkeypatch.setattr("openai_bls.pipeline.metrics_instances._MAX_BYTES", 100_000)
    monkeypatch.setattr("openai_bls.pipeline.metrics_instances._WAIT_S", WAIT_S)

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                writer.write(b"x" * 50_000)
                await writer.drain()

    async def main() -> None:
        peer = Peers(new(), 1)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as loud:
            loud.bind(f"{family}/loud")
            server = await asyncio.start_unix_server(flood, sock=loud)
            assert await peer.ask() == [[]]
            server.close()
        peer.close()

    uvloop.run(main())
    assert "100000 bytes" in caplog.text


_OTHER_PROCESS = """
import asyncio, sys, uvloop
from openai_bls.pipeline.metrics_instances import Peers
from tests.unit.pipeline.test_metrics import new, record

async def main():
    metrics = new()
    metrics.ended(record())
    peers = Peers(metrics, int(sys.argv[1]))
    await peers.start()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

uvloop.run(main())
"""


def test_instances_are_processes_of_one_server() -> None:
    command = [sys.executable, "-c", _OTHER_PROCESS, str(os.getpid())]
    assert address("metrics", os.getpid()) == address("metrics", os.getpid()) != address("metrics", 1)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"

        async def main(owner: int) -> float:
            metrics = new()
            metrics.ended(record())
            peer = Peers(metrics, owner)
            await peer.start()
            found = lines(await metrics.scrape())
            peer.close()
            return found[line("requests_total", **CHAT, outcome="done")]

        assert uvloop.run(main(os.getpid())) == 2
        # Another server's are its own.
        assert uvloop.run(main(1)) == 1
        assert other.stdin is not None
        other.stdin.close()
