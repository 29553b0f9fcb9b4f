"""The command that measures everything on a GPU: its stages, their places, and the goals in its summary."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from benchmarks.support.copying import Load
from benchmarks.support.engine import Floor, Level, Variant
from benchmarks_transformers.build_report import Result
from benchmarks_transformers.builds import FP8
from benchmarks_transformers.gpu import Session, Stage, parser
from benchmarks_transformers.gpu_report import MAIN, Results, goals, summary
from benchmarks_transformers.mixed_load import Rate


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """One of two GPUs, with time for everything, that has prepared."""
    made = Session(parser().parse_args(["--everything", "--out", str(tmp_path / "o"), "--work", str(tmp_path / "w")]))
    made.gpus = ["0", "1"]
    made.prepare = lambda seconds, gpu: "ok"  # type: ignore[method-assign]
    return made


def test_the_issue_names_its_stages(session: Session) -> None:
    names = [stage.name for stage in session.stages()]
    assert names[0] == MAIN
    assert {"FP8 weights and KV cache", "drafts", "a very long prompt", "serve"} < {*names}
    session.options.only = ["drafts"]
    assert [stage.name for stage in session.stages()] == ["drafts"]


def test_stages_run_side_by_side_on_several_gpus(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    both, places = threading.Barrier(2), dict[str, str]()

    def alone(name: str) -> Stage:
        def work(seconds: float, gpu: str) -> str:
            both.wait(seconds)
            places[name] = gpu
            return "ok"

        return Stage(name, 60, work)

    monkeypatch.setattr(session, "stages", lambda: [alone("a"), alone("b")])
    session.run()
    assert sorted((places["a"], places["b"])) == ["0", "1"]
    found = {name: said.partition(": ")[2] for name, said in session.results.stages.items()}
    assert found == dict.fromkeys(("prepare", "a", "b"), "ok")


def test_a_stage_that_fails_leaves_the_others(session: Session) -> None:
    def fail(seconds: float, gpu: str) -> str:
        raise RuntimeError("no kernel")

    assert not session.stage(Stage("none", 60, fail), "0")
    assert "FAILED" in session.results.stages["none"]
    assert not session.stage(Stage("short", 10, lambda seconds, gpu: "ok"), "0")
    assert session.results.stages["short"].endswith("left out: no time")
    assert session.stage(Stage("good", 60, lambda seconds, gpu: "ok"), "0")


def test_goals() -> None:
    def build(name: str, gap_ms: float) -> Result:
        one, many = (Level(count, 1, 0, 9, 23_999, 1, 1, gap_ms, 25, 9) for count in (1, 256))
        return Result(Variant(name, {}, 20.1, [one, many]))

    main = build(MAIN, 4)
    main.prompts_ms = {8192: (200, 4), 24_000: (741, 4)}
    main.json = {"plain": 100, "JSON": 85}
    main.mixed = [Rate(30, 9, 0, 1, 1, 119, 1, 26, 1, 1)]
    main.beside = {"quiet p99": 5, "beside p99": 9}
    drafts = [Load("copies its prompt, greedy", [], plain=[100], drafting=[179])]
    floor = Floor(9, 4_000_000_000, 1e12)
    results = Results(floor=floor, builds=[main, build(FP8[1].name, 2.5)], drafts=drafts)
    rows = [line.split("|") for line in summary(results).partition("## Goals")[2].splitlines()[4 : 4 + 13]]
    met = [row[-2].strip() for row in rows]
    assert len(list(goals(results))) == 13
    assert met == [*["yes", "no", "yes", "yes", "no", "yes", "no", "yes", "no", "yes", "yes", "no", "n/a"]]
