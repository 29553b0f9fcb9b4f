"""The benchmark of speculation: rates, loads, and its table."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from benchmarks import copying
from benchmarks.asking import Answer, Asker
from benchmarks.copying import Continued, Load, ask
from benchmarks.speculation import main, rate, table
from openai_bls.core.engine_types import GenerationRequest, SamplingParams
from openai_bls.engines.registry import create_engine

REQUEST = GenerationRequest(0, [5, 6], 9, SamplingParams(temperature=0))


def null_engine(folder: Path, **options: str) -> Asker:
    asker = Asker()
    asker.engine = create_engine(folder, asker.on_step, {"engine": "null", "null_step_delay_ms": "1"} | options)
    return asker


def test_a_rate_is_of_the_tokens_after_the_first() -> None:
    times = ([3.0, 4.0, 4.0], [7.0], [8.0, 9.0])
    assert rate([Answer(0.0, times=list(one)) for one in times]) == 1.5


def test_ratios_are_medians_of_the_rounds() -> None:
    load = Load("copying", [REQUEST] * 2, plain=[100, 50, 200], drafting=[150, 100, 700])
    load.plain_steps, load.drafting_steps, load.drafted, load.accepted = 1000, 400, 620, 600
    load.answers, load.equal = 2, 1
    row = [cell.strip() for cell in list(table([load]))[2].split("|")[1:-1]]
    assert row == ["copying", "100.0", "150.0", "2.000", "1,000", "400", "620", "600", "1 of 2"]


def test_errors_are_raised(tmp_path: Path) -> None:
    asker = null_engine(tmp_path, null_crash_at_step="3")
    assert asker.engine is not None
    try:
        with pytest.raises(RuntimeError):
            ask(asker, [REQUEST])
    finally:
        asker.engine.close()


def test_prompts_hold_what_comes_but_for_known_places() -> None:
    tokens = list(range(100, 200))
    continued = Continued(tokens, 40)
    whole, changed = continued.copying(1, 0), continued.copying(1, 8)
    start = tokens.index(whole.prompt_token_ids[-1])
    text = [tokens[(start + i) % 100] for i in range(41)]
    assert whole.prompt_token_ids == [*text, text[0]]
    differing = [i for i, pair in enumerate(zip(text, changed.prompt_token_ids, strict=False)) if pair[0] != pair[1]]
    assert set(differing) <= {7, 15, 23, 31, 39}
    assert len(differing) > 3
    assert continued.predicted(1, 0).prediction == tuple(text[1:])
    misleading = continued.misleading(1).prompt_token_ids
    assert misleading[:6] == [*text[:2], tokens[start - 1], *text[1:3], tokens[start - 1]]


def test_a_small_model_copies(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A continuing checkpoint is written, and what its prompts hold is accepted."""
    all_loads = copying.loads
    monkeypatch.setattr(copying, "loads", lambda *args: itertools.islice(all_loads(*args), 1))
    assert main(["--shape", "tiny", "--tokens", "24", "--rounds", "1", "--batch", "8"]) == 0
    [row] = capsys.readouterr().out.splitlines()[2:]
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[0] == "copies its prompt, greedy"
    assert int(cells[5]) < int(cells[4]) / 3
    assert cells[6] == cells[7]
    assert cells[8] == "1 of 1"
