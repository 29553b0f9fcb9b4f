from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.clients.driver import Clients
from benchmarks.clients.stats import nothing_measured
from benchmarks.clients.target import http_target
from benchmarks.contenders.servers import V1, Contender, Running, Setup
from benchmarks.serve_layer import __main__ as serve_layer
from benchmarks.serve_layer import stages
from benchmarks.serve_layer.cells import Cell, Results
from benchmarks.serve_layer.stages import Session
from benchmarks.support.machine import conditions
from benchmarks.support.options import recorded_command
from tests.unit.benchmarks.clients.bench_stub import stub_server
from tests.unit.benchmarks.serve_layer.bench_results import SHAPE, good_results


@pytest.fixture(autouse=True)
def _stub_for_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "running", _serving)


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


@contextlib.contextmanager
def _serving(contender: Contender, setup: Setup, step_delay_ms: float) -> Iterator[Running]:
    """The stub instead of a server; a contender's name is `port,pid,model`."""
    port, pid, model = contender.name.split(",")
    yield Running({V1: http_target("chat", f"http://127.0.0.1:{port}/v1", model=model)}, int(pid))


def _contender(server: tuple[int, int], model: str) -> Contender:
    return Contender(f"{server[0]},{server[1]},{model}", (), (V1,))


def test_a_contender_is_measured(server: tuple[int, int], clients: Clients, tokenizer_dir: Path) -> None:
    session, lines = _session(clients, tokenizer_dir)
    contender = _contender(server, "good")
    session.fast(contender, 1, throughput=True, crowd=False)
    [cell] = session.results.cells
    assert (cell.stage, cell.result.path, cell.result.failed) == ("throughput", contender.label(V1), 0)
    assert cell.result.tokens == 10 * cell.result.requests
    assert cell.result.server_cpu_s is not None
    assert "tokens/s" in lines[0]


def test_a_failed_cell_is_told_and_the_next_one_is_measured(
    server: tuple[int, int], clients: Clients, tokenizer_dir: Path
) -> None:
    session, lines = _session(clients, tokenizer_dir)
    session.shape = replace(session.shape, levels=(1, 2))
    # Probes ask for 8 tokens and pass; what asks for 10 hangs.
    session.fast(_contender(server, "hangs_beyond_8"), 1, throughput=True, crowd=False)
    assert [cell.result.failures for cell in session.results.cells] == [
        {"incomplete: no data for 1 s": 1},
        {"incomplete: no data for 1 s": 2},
    ]
    assert "FAILED: incomplete: no data" in lines[-1]


def test_a_contender_that_does_not_answer(server: tuple[int, int], clients: Clients, tokenizer_dir: Path) -> None:
    session, _ = _session(clients, tokenizer_dir)
    session.fast(_contender(server, "missing"), 1, throughput=True, crowd=False)
    [cell] = session.results.cells
    [reason] = cell.result.failures
    assert reason.startswith("no server: chat: status 404")
    assert cell.result.failed == 2
    assert len(session.results.notes) == 1


def test_options() -> None:
    given = ["--quick", "--concurrency", "64,128", "--contenders", "ours,bare", "--out", "there"]
    options, shape = serve_layer.parse(given)
    assert (shape.levels, shape.seconds, options.rounds) == ((64, 128), 1.5, 1)
    assert options.contenders == ["bare", "ours"]
    # Folders are left out.
    assert recorded_command(["benchmarks.x"], given, ["--out"]) == f"python -m benchmarks.x {' '.join(given[:-2])}"
    with pytest.raises(SystemExit):
        serve_layer.parse(["--contenders", "nobody"])


def test_a_repository_without_a_tokenizer_cannot_be_measured(tmp_path: Path) -> None:
    assert serve_layer.main(["--quick", "--repository", str(tmp_path)]) == 2


def test_results_are_written(tmp_path: Path) -> None:
    results, document = good_results(), tmp_path / "RESULTS.md"
    results.cells.append(Cell("throughput", 3, nothing_measured("ensemble generate_stream", 64, "no server")))
    document.write_text("# Results\n\nText.\n")
    for _ in range(2):
        serve_layer.write(results, SHAPE, conditions("command"), tmp_path / "results", document)
    text = document.read_text()
    assert text.count("<!-- begin: serve-layer -->") == 1
    assert text.startswith("# Results\n\nText.\n")
