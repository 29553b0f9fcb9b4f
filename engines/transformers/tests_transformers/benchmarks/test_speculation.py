"""The benchmark of speculation: rates, loads, and its table."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.support import copying
from benchmarks.support.copying import Load
from benchmarks_transformers.speculation import main, table
from openai_bls.core.engine_types import GenerationRequest, SamplingParams
from openai_bls_transformers.speculation.draft_budget import DraftBudget

REQUEST = GenerationRequest(0, [5, 6], 9, SamplingParams(temperature=0))


def test_ratios_are_medians_of_the_rounds() -> None:
    load = Load("copying", [REQUEST] * 2, plain=[100, 50, 200], drafting=[150, 100, 700])
    load.plain_steps, load.drafting_steps, load.drafted, load.accepted = 1000, 400, 620, 600
    load.answers, load.equal = 2, 1
    row = [cell.strip() for cell in list(table([load]))[2].split("|")[1:-1]]
    assert row == ["copying", "100.0", "150.0", "2.000", "1,000", "400", "620", "600", "1 of 2"]


def test_a_small_model_copies(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A continuing checkpoint is written, and what its prompts hold is accepted."""
    monkeypatch.setattr(DraftBudget, "is_overdrawn", False)  # or a busy machine's times would decide what is drafted
    all_loads = copying.loads
    monkeypatch.setattr(copying, "loads", lambda *args: itertools.islice(all_loads(*args), 1))
    assert main(["--shape", "tiny", "--tokens", "24", "--rounds", "1", "--batch", "8"]) == 0
    [row] = capsys.readouterr().out.splitlines()[2:]
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[0] == "copies its prompt, greedy"
    assert int(cells[5]) < int(cells[4]) / 3
    assert cells[6] == cells[7]
    assert cells[8] == "1 of 1"
