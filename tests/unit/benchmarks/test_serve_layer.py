from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import serve_layer, stages
from benchmarks.cells import Cell, Results
from benchmarks.contenders.servers import V1, Contender, Setup
from benchmarks.driver import Clients
from benchmarks.goals import judge
from benchmarks.machine import conditions
from benchmarks.stages import Session, split_gaps
from benchmarks.stats import analyse, nothing_measured
from benchmarks.target import Plan, http_target
from tests.unit.benchmarks.bench_results import SHAPE, good_results
from tests.unit.benchmarks.bench_stub import stub_server
from tests.unit.benchmarks.test_bench_stats import make_trace


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[int, int]]:
    with stub_server() as running:
        yield running


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    with Clients() as clients:
        yield clients


def _session(clients: Clients, tokenizer_dir: Path) -> tuple[Session, list[str]]:
    lines: list[str] = []
    shape = replace(SHAPE, levels=(2,), stall_s=1.0)
    setup = Setup(Path(), tokenizer_dir / "tokenizer.json", (1,))
    return Session(clients, setup, shape, Results(), lines.append), lines


def _peer(server: tuple[int, int], model: str) -> Contender:
    port, pid = server
    target = http_target("chat", f"http://127.0.0.1:{port}/v1", model=model)
    return Contender("url", (), (V1,), peer=target, peer_pid=pid)


def test_a_peer_is_measured(server: tuple[int, int], clients: Clients, tokenizer_dir: Path) -> None:
    session, lines = _session(clients, tokenizer_dir)
    session.fast(_peer(server, "good"), 1, throughput=True, crowd=False)
    [cell] = session.results.cells
    assert (cell.stage, cell.result.path, cell.result.failed) == ("throughput", "url /v1 chat", 0)
    assert cell.result.tokens == 10 * cell.result.requests
    assert cell.result.server_cpu_s is not None
    assert [sample.moment for sample in session.results.memory] == ["before the load", "after the load"]
    assert "tokens/s" in lines[0]


def test_a_failed_cell_is_told_and_the_next_one_is_measured(
    server: tuple[int, int], clients: Clients, tokenizer_dir: Path
) -> None:
    session, lines = _session(clients, tokenizer_dir)
    session.shape = replace(session.shape, levels=(1, 2))
    # Probes ask for 8 tokens and pass; what asks for 10 hangs.
    session.fast(_peer(server, "hangs_beyond_8"), 1, throughput=True, crowd=False)
    assert [cell.result.failures for cell in session.results.cells] == [
        {"incomplete: no data for 1 s": 1},
        {"incomplete: no data for 1 s": 2},
    ]
    assert "FAILED: incomplete: no data" in lines[-1]


def test_a_contender_that_does_not_answer(server: tuple[int, int], clients: Clients, tokenizer_dir: Path) -> None:
    session, _ = _session(clients, tokenizer_dir)
    session.fast(_peer(server, "missing"), 1, throughput=True, crowd=False)
    session.long_prompt(_peer((1, 1), "good"), 1)
    [cell] = session.results.cells
    [reason] = cell.result.failures
    assert reason.startswith("no server: chat: status 404")
    assert cell.result.failed == 2
    assert len(session.results.notes) == 2


def test_long_prompts(
    server: tuple[int, int], clients: Clients, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_SETTLE_S", 0.2), ("_QUIET_S", 0.1), ("_PROMPT_S", 0.6), ("_PROMPTS", 2), ("_STREAMS", 4)):
        monkeypatch.setattr(stages, name, value)
    session, lines = _session(clients, tokenizer_dir)
    session.shape = replace(session.shape, long_prompt_tokens=2_000, step_delay_ms=2.5)
    session.long_prompt(_peer(server, "slow"), 1)
    [found] = session.results.long_prompts
    assert found.failures == {}
    assert found.prompt_tokens > 400
    assert found.gaps > 0
    assert found.quiet_gap_ms_p99 > 0
    assert "inter-token p99" in lines[-1]


def test_gaps_beside_and_without_long_prompts() -> None:
    plan = Plan(http_target("chat", "http://h:1/v1"), 1, 1, 1, 6)
    trace = make_trace([(0.5, 1), (1.0, 1), (2.0, 1), (3.0, 1), (4.5, 1), (5.0, 1), (6.0, 4)], tokens=6)
    report = analyse([trace], plan, cpu_s=0)
    within, quiet = split_gaps(report, [(3.2, 3.4)], settled=1.5)
    assert within.tolist() == [1.5]
    # The gap from 1.0 had begun before all was settled.
    assert quiet.tolist() == [1.0, 0.5, 1.0]
    assert len(split_gaps(report, [(9.0, 9.1)], 0.0)[0]) == 0


def test_options() -> None:
    given = ["--quick", "--concurrency", "64,128", "--contenders", "ours,bare", "--out", "there"]
    options, shape = serve_layer.parse(given)
    assert (shape.levels, shape.seconds, options.rounds) == ((64, 128), 1.5, 1)
    assert options.contenders == ["bare", "ours"]
    # Folders are left out.
    assert serve_layer.recorded_command(given) == f"python -m benchmarks.serve_layer {' '.join(given[:-2])}"
    with pytest.raises(SystemExit):
        serve_layer.parse(["--contenders", "nobody"])


def test_a_repository_without_a_tokenizer_cannot_be_measured(tmp_path: Path) -> None:
    assert serve_layer.main(["--quick", "--repository", str(tmp_path)]) == 2


def test_results_are_written(tmp_path: Path) -> None:
    results, document = good_results(), tmp_path / "RESULTS.md"
    results.cells.append(Cell("throughput", 3, nothing_measured("official_bls generate_stream", 64, "no server")))
    document.write_text("# Results\n\nText.\n")
    goals = judge(results, SHAPE)
    for _ in range(2):
        serve_layer.write(results, goals, SHAPE, conditions("command"), tmp_path / "results", document)
    text = document.read_text()
    assert text.count("<!-- begin: serve-layer -->") == 1
    assert text.startswith("# Results\n\nText.\n")
    if (tmp_path / "results" / "serve_layer.png").exists():
        assert "(results/serve_layer.png)" in text
