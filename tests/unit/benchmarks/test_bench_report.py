from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import machine, report
from benchmarks.machine import Conditions
from benchmarks.null_tokens import word_token_ids
from benchmarks.run import recorded_command
from benchmarks.stats import Measurement

_CONDITIONS = Conditions("python -m benchmarks.run", "2026-01-02T03:04Z", 2, "A CPU", 0.5, {"Python": "3.11"})


def _one(
    rate: float, *, path: str = "/v1 chat", level: int = 16, failed: int = 0, cpu: float | None = 0.5
) -> Measurement:
    return Measurement(
        path=path,
        concurrency=level,
        requests=64,
        failed=failed,
        failures={"status 503: busy": failed} if failed else {},
        wall_s=1.0,
        prompt_tokens=64.0,
        tokens=10_000,
        text_events=10_000,
        first_token_ms_p50=10.0,
        first_token_ms_p99=20.0,
        gap_ms_p50=float("nan"),
        gap_ms_p99=2.0,
        gap_ms_mean=1.0,
        tokens_per_s=rate,
        client_cpu_s=0.1,
        server_cpu_s=cpu,
        server_cpu_by_process={"tritonserver": 0.3, "openai_bls": 0.2, "ensemble": 0.0} if cpu else {},
    )


def test_a_row_holds_medians_and_the_range() -> None:
    [row] = report.rows([_one(1000), _one(3000), _one(2000, failed=2)])
    cells = dict(zip(report.HEADERS, row, strict=True))
    assert cells["requests"] == "192"
    assert cells["failed"] == "2"
    assert cells["tokens/s"] == "2,000"
    assert cells["(range)"] == "1,000–3,000"
    assert cells["server CPU s/1k"] == "0.0500"
    assert cells["client load"] == "0.10"
    assert cells["ITL p50"] == "n/a"


def test_a_remote_server_has_no_cpu_time() -> None:
    [row] = report.rows([_one(1000, cpu=None)])
    assert dict(zip(report.HEADERS, row, strict=True))["server CPU s/1k"] == "n/a"
    assert report.process_table([_one(1000, cpu=None)])[1] == []


def test_cpu_time_by_process_leaves_idle_ones_out() -> None:
    headers, body = report.process_table([_one(1000)])
    assert headers == ["path", "conc.", "tritonserver", "openai_bls", "client"]
    assert body == [["/v1 chat", "16", "30.0", "20.0", "10.0"]]


def test_text_tables_are_aligned() -> None:
    lines = report.text_table(["path", "n"], [["a", "1"], ["longer", "1,000"]]).splitlines()
    assert lines == ["path        n", "a           1", "longer  1,000"]


def test_json_has_every_measurement_and_no_nan() -> None:
    document = json.loads(report.json_document({"null": [_one(1000), _one(2000)]}, _CONDITIONS))
    assert [one["tokens_per_s"] for one in document["series"]["null"]] == [1000, 2000]
    assert document["series"]["null"][0]["gap_ms_p50"] is None
    assert document["conditions"]["cores"] == 2


def test_failures_are_told() -> None:
    text = report.terminal([_one(1000, failed=2), _one(1000, failed=1)])
    assert "3 × /v1 chat: status 503: busy" in text
    section = report.markdown_section("T", [_one(1000, failed=2)], _CONDITIONS, note="Shared.")
    assert "failed: 2 × /v1 chat" in section
    assert "`python -m benchmarks.run`" in section
    assert "2 cores (A CPU)" in section
    assert "Shared." in section


def test_sections_are_appended_then_rewritten() -> None:
    document = report.with_section("# Results\n", "a", "first")
    document = report.with_section(document, "b", "second")
    again = report.with_section(document, "a", "changed")
    assert again == document.replace("first", "changed")
    assert again.startswith("# Results\n\n<!-- begin: a -->\n\nchanged\n\n<!-- end: a -->\n")
    assert again.endswith("<!-- end: b -->\n")
    with pytest.raises(ValueError, match="without"):
        report.with_section("<!-- begin: a -->", "a", "x")


def test_cpu_model(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: A CPU @ 3 GHz\n")
    assert machine.cpu_model(cpuinfo) == "A CPU @ 3 GHz"
    assert machine.cpu_model(tmp_path / "none")


def test_conditions_name_versions() -> None:
    made = machine.conditions("command", {"tritonserver": "2.51.0"})
    assert {"Python", "tritonserver", "numpy"} <= set(made.versions)
    assert made.cores >= 1


def test_null_engine_tokens_are_words(tmp_path: Path) -> None:
    assert word_token_ids(tmp_path) == []
    folder = tmp_path / "preprocessing" / "1" / "tokenizer"
    folder.mkdir(parents=True)
    vocabulary = {"Ġthe": 9, "the": 1, "Ġof": 4, "Ġ1": 5, "Ġa": 6, "ĠThe": 7}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    assert word_token_ids(tmp_path) == [4, 9]


def test_the_recorded_command_leaves_local_things_out() -> None:
    given = ["--engine", "auto", "--json", "out.json", "--note", "a note", "--paths", "/v1 chat", "--markdown"]
    assert recorded_command(given) == "python -m benchmarks.run --engine auto --paths '/v1 chat' --markdown"
