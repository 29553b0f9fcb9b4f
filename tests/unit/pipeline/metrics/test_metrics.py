from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.engine import EngineStats
from openai_bls.core.errors import AuthenticationError, EngineError, InvalidRequestError
from openai_bls.core.request_record import Outcome
from openai_bls.core.usage import Usage
from openai_bls.pipeline.metrics.metrics import Metrics
from tests.unit.core_support import Bench, chat, request_context
from tests.unit.pipeline.metrics.metrics_support import CHAT, line, lines, new, of, record, series
from tests.unit.pipeline.serving import answered

OUTCOMES: tuple[Outcome, ...] = ("done", "cancelled")


@pytest.mark.parametrize(
    ("changes", "token_s"),
    [
        # Four gaps in two seconds, in one choice or in each of two.
        ({}, 0.5),
        ({"finish_reasons": ["stop", "length"], "usage": Usage.of(10, 10)}, 0.5),
        ({"usage": Usage.of(10, 1)}, None),
        ({"usage": Usage.of(10, 1), "first_token_at": None}, None),
    ],
)
def test_a_request_that_ended_well(changes: dict[str, Any], token_s: float | None) -> None:
    metrics, ended = new(), record(**changes)
    metrics.count(ended)
    found = of(metrics)
    assert found[line("requests_total", **CHAT, outcome="done")] == 1
    for reason in ended.finish_reasons:
        assert found[line("finished_sequences_total", **CHAT, finish_reason=reason)] == 1
    assert found[line("generation_tokens_total", **CHAT)] == ended.usage.completion_tokens
    assert found[line("e2e_request_latency_seconds_sum", **CHAT)] == pytest.approx(2.05)
    assert found.get(line("time_per_output_token_seconds_sum", **CHAT)) == (token_s and pytest.approx(token_s))
    first_s = None if ended.first_token_at is None else pytest.approx(0.05)
    assert found.get(line("time_to_first_token_seconds_sum", **CHAT)) == first_s
    assert not any("_created" in key for key in found)


def test_kinds_of_tokens_and_buckets() -> None:
    metrics = new()
    metrics.count(record())
    found = of(metrics)
    for name, count in {"prompt": 10, "cached_prompt": 4, "generation": 5, "reasoning": 2}.items():
        assert found[line(f"{name}_tokens_total", **CHAT)] == count
    assert found[line("time_to_first_token_seconds_bucket", **CHAT, le="0.04")] == 0
    assert found[line("time_to_first_token_seconds_bucket", **CHAT, le="0.06")] == 1


def test_requests_that_are_counted_together_count_as_each_by_itself() -> None:
    times = [{"first_token_at": 100 + s, "ended_at": 100 + 4 * s, "queue_s": s / 2} for s in (0.001, 0.06, 0.0601, 90)]
    records = [record(outcome, **time) for outcome in OUTCOMES for time in times]
    together, one_by_one = new(), new()
    together.count(*records)
    for each in records:
        one_by_one.count(each)
    assert of(together) == pytest.approx(of(one_by_one))


@pytest.mark.parametrize(("outcome", "label"), [("cancelled", "cancelled"), (EngineError("x"), "500")])
def test_what_did_not_end_well_counts_without_a_latency(outcome: Outcome, label: str) -> None:
    metrics = new()
    metrics.count(record(outcome))
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
    metrics.count(record(error))
    metrics.refused("chat.completions", error)
    found = of(metrics)
    assert sum(value for key, value in found.items() if key.startswith("openai_bls_requests_total")) == 1


async def test_keys_of_a_file_are_counted_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice: a1\n")
    bench = Bench(api_keys_file=str(tmp_path / "keys"))
    metrics = bench.service.metrics
    bench.service.on_end = metrics.ended
    answer = asyncio.create_task(answered(bench.service, request_context(key="alice"), chat()))
    while not bench.engine.requests:
        await asyncio.sleep(0)
    assert lines(await metrics.scrape())["openai_bls_requests_in_progress"] == 1
    metrics.refused("tokenize", InvalidRequestError("x"), "alice")
    metrics.refused("tokenize", AuthenticationError("x"))
    bench.engine.deliver(0, "ab", "stop")
    await answer
    found = lines(await metrics.scrape())
    assert found["openai_bls_requests_in_progress"] == 0
    assert found[line("requests_total", **CHAT, key="alice", outcome="done")] == 1
    assert found[line("prompt_tokens_total", **CHAT, key="alice")] == 2
    assert found[line("generation_tokens_total", **CHAT, key="alice")] == 2
    assert found[line("requests_total", model="", endpoint="tokenize", key="alice", outcome="400")] == 1
    assert found[line("requests_total", model="", endpoint="tokenize", key="", outcome="401")] == 1
    assert found[line("finished_sequences_total", **CHAT, finish_reason="stop")] == 1


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
    assert found[line("requests_waiting", model="tiny")] == 2
    assert found[line("engine_kv_cache_usage_ratio", model="tiny")] == 0.25
    assert found[line("engine_steps_total", model="tiny")] == 9
    assert found[line("engine_generated_tokens_total", model="tiny")] == 40
    bench.engine.stats = EngineStats(0, 0, 0.0, 9, 40, failed=True)
    assert of(metrics)[up] == 0
    bench.engine.stats = None
    bench.engine.connected = False
    assert of(metrics)[up] == 0


def test_waiting_is_what_waits_anywhere() -> None:
    bench = Bench()
    metrics = bench.service.metrics
    waits = line("requests_waiting", model="tiny")
    bench.engine.stats = EngineStats(4, 1, 0.5, 9, 40)
    assert of(metrics)[waits] == 1
    metrics.queue_of("tiny")(1998, 20_000)
    found = of(metrics)
    assert found[waits] == 1999
    assert found[line("prompt_tokens_waiting", model="tiny")] == 20_000
    assert found[line("engine_sequences_waiting", model="tiny")] == 1
    metrics.queue_of("tiny")(-1998, -20_000)
    assert of(metrics)[waits] == 1


def nvidia(found: dict[str, float], family: str, label: str) -> dict[str, float]:
    """Values of a family of NVIDIA's, by `label`."""
    kinds = ("waiting", "scheduled", "active", "max", "used", "free", "fraction", "tokens_per")
    keys = {kind: series(f"nv_trt_llm_{family}", {"model": "tiny", label: kind, "version": "1"}) for kind in kinds}
    return {kind: found[key] for kind, key in keys.items() if key in found}


def test_gateways_find_the_load_under_nvidias_names() -> None:
    bench = Bench()
    metrics = bench.service.metrics
    metrics.queue_of("tiny")(7, 70)
    bench.engine.stats = EngineStats(3, 2, 0.25, 9, 40, kv_blocks=400, kv_block_size=32)
    found = of(metrics)
    places = bench.model.info.max_batch_size
    requests = {"waiting": 9, "scheduled": 3, "active": 12, "max": places}
    assert nvidia(found, "request_metrics", "request_type") == requests
    blocks = {"max": 400, "used": 100, "free": 300, "fraction": 0.25, "tokens_per": 32}
    assert nvidia(found, "kv_cache_block_metrics", "kv_cache_block_type") == blocks
    assert found[line("engine_kv_cache_blocks_used", model="tiny")] == 100
    # Of an engine that tells no blocks, and of one whose backend tells Triton by itself.
    bench.engine.stats = EngineStats(3, 2, 0.25, 9, 40)
    assert not nvidia(of(metrics), "kv_cache_block_metrics", "kv_cache_block_type")
    bench.engine.stats = EngineStats(3, 2, float("nan"), 9, 40)
    assert not any(key.startswith("nv_") for key in of(metrics))


async def test_scrapes_at_once_share_a_page_that_is_newer_than_they() -> None:
    metrics = new()
    first = await metrics.scrape()
    metrics.ended(record())
    pages = await asyncio.gather(*(metrics.scrape() for _ in range(20)))
    assert all(page is pages[0] for page in pages)
    assert lines(pages[0]).keys() > lines(first).keys()


_INSTANCE = """
import asyncio, sys
from pathlib import Path
from openai_bls.pipeline.metrics import directory as metrics_directory
metrics_directory._SHARED_MEMORY = Path(sys.argv[1])
assert metrics_directory.share(int(sys.argv[2])) is not None
from tests.unit.pipeline.metrics.metrics_support import new, record

metrics = new()

async def page(command):
    match command:
        case ["end", outcome]:
            metrics.ended(record(outcome))
        case ["progress", count]:
            metrics.set_in_progress(int(count))
    return await metrics.scrape()

while command := sys.stdin.readline().split():
    sys.stdout.buffer.write(asyncio.run(page(command)) + b"\\n\\n")
    sys.stdout.flush()
"""


class Instance:
    """A process with metrics of its own; each method returns its scrape after."""

    def __init__(self, folder: Path, owner: int) -> None:
        command = [sys.executable, "-c", _INSTANCE, str(folder), str(owner)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def tell(self, command: str) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()
        page = b""
        while not page.endswith(b"\n\n"):
            page += self.process.stdout.readline()
        return lines(page)

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(30) == 0


def test_instances_are_summed_whichever_is_scraped(tmp_path: Path) -> None:
    done = line("requests_total", **CHAT, outcome="done")
    infinity = line("e2e_request_latency_seconds_bucket", **CHAT, le="+Inf")
    one, two, stranger = (Instance(tmp_path, owner) for owner in (os.getpid(), os.getpid(), os.getppid()))
    one.tell("end done")
    one.tell("progress 2")
    two.tell("end cancelled")
    two.tell("end done")
    found = two.tell("progress 3")
    assert found == one.tell("look")
    assert (found[done], found[infinity]) == (2, 2)
    assert found[line("requests_total", **CHAT, outcome="cancelled")] == 1
    assert found["openai_bls_requests_in_progress"] == 5
    assert found[line("engine_up", model="tiny")] == 1
    # Another server's are its own.
    assert done not in stranger.tell("look")
    # What an instance counted stays counted when it has ended; what it had in progress has ended with it.
    one.stop()
    found = two.tell("look")
    assert (found[done], found["openai_bls_requests_in_progress"]) == (2, 3)
    two.stop()
    stranger.stop()


def names(page: bytes) -> set[str]:
    return {line.split()[2] for line in page.decode().splitlines() if line.startswith("# TYPE")}


def test_every_metric_has_a_name_before_it_is_counted(tmp_path: Path) -> None:
    instance = Instance(tmp_path, os.getpid())
    shared, _ = instance.process.communicate(b"look\n", 30)
    assert names(shared) == names(asyncio.run(new().scrape()))
