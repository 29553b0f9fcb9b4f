"""`vllm serve` beside this project: loads, settings from logs, turns, tables; the servers are small ones."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.clients.driver import Clients
from benchmarks.clients.stats import Measurement
from benchmarks.clients.target import Arrivals, Plan, bodies, http_target
from benchmarks.support.checkpoint_shapes import DEMO
from benchmarks.support.machine import Conditions
from benchmarks_vllm.vllm_serve.__main__ import engine_arguments, main, parse, record
from benchmarks_vllm.vllm_serve.engine_settings import differences, engine_settings
from benchmarks_vllm.vllm_serve.loads import json_schema, loads
from benchmarks_vllm.vllm_serve.report import goals, summary, times
from benchmarks_vllm.vllm_serve.servers import (
    EMBEDDED,
    ONE_GPU,
    OVER_VLLM,
    SERVERS,
    VLLM_SERVE,
    Serving,
    Setup,
    StartError,
    cache_options,
)
from benchmarks_vllm.vllm_serve.session import Amounts, Cell, Results, Session, merged, read, write
from openai_bls.core.checkpoint import read_checkpoint
from tests.unit.benchmarks.clients.bench_stub import stub_server

_TARGET = http_target("chat", "http://127.0.0.1:1/v1", model="good")
_MADE = Conditions("command", "2026-11-23T00:00Z", 2, "a CPU", 0.0, {"Python": "3.11"})
_LOG = """\
(APIServer pid=1) INFO 11-23 21:55:18 [scheduler.py:253] Chunked prefill is enabled with max_num_batched_tokens=8192.
(EngineCore pid=2) INFO 11-23 21:56:21 [core.py:133] Initializing a V1 LLM engine (v0.26.0) with config: model='/m', \
dtype=torch.bfloat16, max_seq_len=32768, quantization=None, enforce_eager=False, kv_cache_dtype=auto, \
enable_prefix_caching=False, enable_chunked_prefill=True, \
compilation_config={'mode': <CompilationMode.VLLM_COMPILE: 3>, \
'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, 'max_cudagraph_capture_size': 512}
(EngineCore pid=2) INFO 11-23 21:57:12 [kv_cache_utils.py:1] GPU KV cache size: 174,720 tokens, Maximum concurrency
"""


def test_random_arrivals() -> None:
    plan = Plan(_TARGET, 4, 1, 1, 1, arrivals=Arrivals(rate=50, seconds=2), response_format=json_schema())
    asked = bodies(plan)
    assert 50 < len(asked) < 150
    assert bodies(plan) == asked != bodies(replace(plan, seed=1))
    moments = [one.at_s for one in asked]
    assert moments == sorted(moments)
    assert 0 < moments[0] < moments[-1] < 2
    body = json.loads(asked[0].body)
    assert body["max_tokens"] == asked[0].output_tokens
    assert body["response_format"] == json_schema()
    assert len({one.output_tokens for one in asked}) > 5
    assert len({len(one.body) for one in asked}) > 5


def test_a_load_for_each_kind() -> None:
    found = loads((1, 16), 4, 8, (2,), 3)
    assert [load.name for load in found] == ["16", "1", "JSON, 8", "2 requests/s"]
    assert [load.requests for load in found[:3]] == [64, 8, 32]
    plans = [load.plan(_TARGET, 30, 0.9, 128, 1) for load in found]
    assert [plan.response_format is not None for plan in plans] == [False, False, True, False]
    assert plans[3].arrivals == Arrivals(2, 3, 0.9)
    assert len(loads((1,), 4, 0, (0,), 3)) == 1


def test_settings_of_an_engine(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(_LOG, encoding="utf-8")
    found = engine_settings(log)
    assert found == {
        "version": "0.26.0",
        "dtype": "torch.bfloat16",
        "max_model_len": "32768",
        "quantization": "None",
        "kv_cache_dtype": "auto",
        "enforce_eager": "False",
        "enable_prefix_caching": "False",
        "enable_chunked_prefill": "True",
        "compilation mode": "CompilationMode.VLLM_COMPILE",
        "cudagraph_mode": "CUDAGraphMode.FULL_AND_PIECEWISE",
        "largest CUDA graph": "512",
        "max_num_batched_tokens": "8192",
        "KV cache tokens": "174,720",
    }
    assert differences(found, found | {"version": "0.25.0"}) == ["version"]
    assert not differences(found, {})


def test_options() -> None:
    needed = ["--vllm-python", "python", "--out", "out"]
    full, quick = parse(needed), parse([*needed, "--quick", "--tokens", "9", "--engine-args", '{"max_num_seqs": 3}'])
    assert (full.concurrency, full.tokens, full.like) == ((1, 16, 64, 256), 128, "qwen2.5-7b")
    assert (quick.concurrency, quick.tokens, quick.like) == ((1, 4), 9, "demo")
    assert engine_arguments(full)["gpu_memory_utilization"] == 0.3
    assert engine_arguments(quick)["max_num_seqs"] == 3
    parallel = parse([*needed, "--tp-size", "2"])
    assert (engine_arguments(parallel)["tensor_parallel_size"], parallel.servers) == (
        2,
        [VLLM_SERVE, OVER_VLLM, ONE_GPU],
    )
    for wrong in ([*needed, "--servers", "another"], needed[:2], []):
        with pytest.raises(SystemExit):
            parse(wrong)


def test_the_embedded_engine_gets_the_kv_cache_that_vllm_has(tmp_path: Path) -> None:
    setup = _setup(tmp_path)
    size, per_token = 3_000_000, read_checkpoint(DEMO).kv_bytes_per_token
    for dtype, tokens in (("float32", size // per_token), ("bfloat16", 2 * size // per_token)):
        given = replace(setup, arguments={"dtype": dtype, "kv_cache_memory_bytes": size})
        assert cache_options(given) == ["--max-tokens-in-kv-cache", str(tokens)]
    assert cache_options(setup) == []


def _setup(tmp_path: Path, python: str = sys.executable) -> Setup:
    return Setup(DEMO, tmp_path, tmp_path, Path(python), {"max_num_seqs": 4}, 20.0)


@contextlib.contextmanager
def _small(name: str, setup: Setup) -> Iterator[Serving]:
    with stub_server() as (port, pid):
        log = setup.logs / "log"
        log.write_text(_LOG, encoding="utf-8")
        yield Serving(name, http_target("chat", f"http://127.0.0.1:{port}/v1", model="good"), pid, log, 1.5)


def test_servers_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def fails(setup: Setup) -> Iterator[Serving]:
        raise StartError("no room")
        yield

    monkeypatch.setitem(SERVERS, VLLM_SERVE, lambda setup: _small(VLLM_SERVE, setup))
    monkeypatch.setitem(SERVERS, OVER_VLLM, lambda setup: _small(OVER_VLLM, setup))
    monkeypatch.setitem(SERVERS, EMBEDDED, fails)
    chosen = loads((2,), 2, 0, (20,), 0.2)
    results, saved = Results(_MADE, {}, [load.name for load in chosen]), list[int]()
    amounts = Amounts(chosen, 20, 8, 3, time.monotonic() + 600)
    with Clients() as clients:
        Session(clients, _setup(tmp_path), amounts, results, lambda: saved.append(len(results.cells)), print).run(
            [VLLM_SERVE, OVER_VLLM, EMBEDDED], kill_worker=True
        )
    assert results.problems.pop("the death of a worker").startswith("LookupError: no process")
    assert results.problems == {EMBEDDED: "StartError: no room"}
    assert results.ready_s == {VLLM_SERVE: 1.5, OVER_VLLM: 1.5}
    assert results.settings[OVER_VLLM]["version"] == "0.26.0"
    assert not any(cell.result.failed for cell in results.cells)
    turns = [(cell.round, cell.load, cell.server) for cell in results.cells]
    assert turns[:4] == [
        (1, "2", VLLM_SERVE),
        (1, "2", OVER_VLLM),
        (1, "20 requests/s", VLLM_SERVE),
        (1, "20 requests/s", OVER_VLLM),
    ]
    assert [one[2] for one in turns[4:]] == [OVER_VLLM, VLLM_SERVE] * 2 + [VLLM_SERVE, OVER_VLLM] * 2
    assert saved[-1] == 12
    assert all(cell.result.prompt_tokens < 30 for cell in results.cells if cell.load == "2")
    assert "Different: none." in summary(results)
    assert "no room" in summary(results)


def _cell(server: str, load: str, tokens_per_s: float, cpu_s: float, first: float, failed: int = 0) -> Cell:
    nothing = dict.fromkeys(("prompt_tokens", "gap_ms_p50", "gap_ms_p99", "gap_ms_mean", "client_cpu_s"), 1.0)
    one = Measurement(
        path=server,
        concurrency=1,
        requests=1,
        failed=failed,
        failures={},
        wall_s=1,
        tokens=1000,
        text_events=1000,
        first_token_ms_p50=first,
        first_token_ms_p99=first,
        tokens_per_s=tokens_per_s,
        server_cpu_s=cpu_s,
        server_cpu_by_process={"worker": cpu_s},
        **nothing,
    )
    return Cell(server, load, 1, one)


def test_goals() -> None:
    cells = [
        *(_cell(VLLM_SERVE, "256", 1000, 0.1, 440), _cell(OVER_VLLM, "256", 1060, 0.069, 221)),
        *(_cell(VLLM_SERVE, "64", 1000, 0.1, 50), _cell(OVER_VLLM, "64", 1040, 0.08, 50)),
        *(_cell(VLLM_SERVE, "1", 100, 3, 15), _cell(OVER_VLLM, "1", 100, 3, 8)),
        *(_cell(VLLM_SERVE, "JSON, 64", 100, 3, 15), _cell(OVER_VLLM, "JSON, 64", 100, 3, 8, failed=1)),
    ]
    results = Results(_MADE, {"max_num_seqs": 4}, ["256", "64", "1", "JSON, 64"], cells=cells)
    found = {name: (measured, limit) for name, _, limit, measured in goals(results)}
    assert found["256 streams, times the tokens/s"][0] == pytest.approx(1.06)
    assert found["256 streams, times the tokens/s"][1] == 1.05
    assert found["256 streams, times the time to the first token"][0] == pytest.approx(221 / 440)
    assert found["JSON, 64, times the tokens/s"][0] is None
    rows = [line.split("|")[-2].strip() for line in summary(results).partition("| goal")[2].splitlines()[2:9]]
    assert rows == ["no", "no", "yes", "yes", "no", "yes", "n/a"]
    assert times(results, EMBEDDED, "64", lambda one: one.tokens_per_s) is None


def test_results_are_recorded(tmp_path: Path) -> None:
    document, recorded = tmp_path / "RESULTS.md", tmp_path / "recorded.json"
    document.write_text("# Results\n", encoding="utf-8")
    cells = [_cell(VLLM_SERVE, "64", math.nan, 0.1, 50, failed=1), _cell(OVER_VLLM, "64", 1040, 0.08, 50)]
    results = Results(_MADE, {"max_num_seqs": 4}, ["64"], cells=cells)
    write(results, tmp_path / "results.json")
    for _ in range(2):
        record(read(tmp_path / "results.json"), document, recorded)
    text = document.read_text(encoding="utf-8")
    assert text == f"# Results\n\n<!-- begin: vllm-serve -->\n\n{summary(results)}\n<!-- end: vllm-serve -->\n"
    assert read(recorded).cells[1] == cells[1]


def test_a_second_run_replaces_its_loads() -> None:
    first = Results(_MADE, {}, ["64", "JSON, 64"], {VLLM_SERVE: 58.0}, {VLLM_SERVE: {"version": "1"}})
    first.cells = [_cell(VLLM_SERVE, "64", 1000, 0.1, 50), _cell(VLLM_SERVE, "JSON, 64", 1, 0.1, 50, failed=1)]
    more = Results(_MADE, {}, ["JSON, 64", "8"], {VLLM_SERVE: 30.0}, {OVER_VLLM: {"version": "1"}})
    more.cells = [_cell(VLLM_SERVE, "JSON, 64", 900, 0.1, 50)]
    found = merged(first, more)
    assert found.loads == ["64", "JSON, 64", "8"]
    assert found.cells == [first.cells[0], more.cells[0]]
    assert (found.ready_s, set(found.settings)) == ({VLLM_SERVE: 58.0}, {VLLM_SERVE, OVER_VLLM})


def test_the_command_without_vllm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--quick", "--vllm-python", sys.executable, "--servers", VLLM_SERVE, "--out", str(tmp_path / "out")]
    assert main(given) == 1
    assert "has no vLLM" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "results.json").read_bytes())["problems"]
