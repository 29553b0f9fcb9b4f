"""Trials in a real process: the budgets of CPU time and memory, what is told, trials given up, processes that die."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_bls.engines.grammars import trial_worker
from openai_bls.engines.grammars.errors import GivenUpError, GrammarError
from openai_bls.engines.grammars.trials import Trials
from tests.engine_contract.support import PATIENCE_S

TOKENS = [bytes([byte]) for byte in range(255)] + [trial_worker.SPECIAL + b"<255>"]
SMALL = 'start: %json {"type": "object", "properties": {"a": {"type": "string"}}}'
SLOW = 'start: %json {"type": "integer", "multipleOf": 999983}'
# As large as slow grammars get, and as quick as large ones.
LARGE = "start: X\nX: /(?s:.*)(a|b)(?s:.{500})c/ & /(?s:.*)(a|d)(?s:.{499})c/"


@pytest.fixture
def trials() -> Iterator[Trials]:
    made = Trials(TOKENS)
    yield made
    made.close()
    assert made.pids == []


def test_the_size_of_what_compiles(trials: Trials) -> None:
    small = trials.run("a", SMALL)
    several = trials.run("a", 'start: %json {"type": "integer", "multipleOf": 9973}')
    assert 0 <= small < 1 << 20 < several < trial_worker.MEMORY_BYTES
    assert len(trials.pids) == 1


@pytest.mark.parametrize("grammar", [SLOW, LARGE])
def test_what_is_beyond_the_budget_is_refused_and_the_next_is_tried(trials: Trials, grammar: str) -> None:
    trials.run("before", SMALL)
    pids = trials.pids
    with pytest.raises(GrammarError, match="to compile"):
        trials.run("slow", grammar)
    assert trials.run("after", SMALL) < 1 << 20
    assert trials.pids == pids


def test_the_cpu_time_is_what_counts(trials: Trials) -> None:
    """Of whole processes, so that none of it is another one's."""
    trials.run("before", SMALL)
    with pytest.raises(GrammarError):
        trials.run("slow", SLOW)
    (pid,) = trials.pids
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(") ", 1)[1].split()
    of_children = sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")
    assert of_children < trial_worker.CPU_S + 0.5


def test_what_does_not_compile_is_told_as_the_library_tells_it(trials: Trials) -> None:
    with pytest.raises(GrammarError, match="unknown name"):
        trials.run("a", "start: other")
    with pytest.raises(GrammarError):
        trials.run("a", "start: " + "(" * 100_000 + '"a"' + ")" * 100_000)


def test_limits_at_the_first_token_are_told_at_once() -> None:
    made = Trials([*TOKENS, *(b"%d" % at for at in range(100_000, 1_000_000, 37))])
    try:
        with pytest.raises(GrammarError, match="llguidance's limits"):
            made.run("a", 'start: %json {"type": "integer", "multipleOf": 9973}')
    finally:
        made.close()


def begin(trials: Trials, name: str, grammar: str) -> tuple[threading.Thread, list[BaseException]]:
    """Run a trial on another thread, and return once it has begun."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            trials.run(name, grammar)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not trials._running:
        assert thread.is_alive()
    return thread, errors


def test_a_trial_that_is_given_up_ends(trials: Trials) -> None:
    trials.run("before", SMALL)
    (pid,) = trials.pids
    thread, errors = begin(trials, "slow", SLOW)
    trials.give_up("other")
    assert not errors
    trials.give_up("slow")
    thread.join(PATIENCE_S)
    assert [type(error) for error in errors] == [GivenUpError]
    trials.give_up("slow")
    # The order to end it is not taken for the next one's.
    assert trials.run("slow", SMALL) < 1 << 20
    assert trials.pids == [pid]


def test_a_process_that_dies_is_replaced(trials: Trials) -> None:
    trials.run("before", SMALL)
    (pid,) = trials.pids
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError):
        trials.run("lost", SMALL)
    assert trials.run("after", SMALL) < 1 << 20
    assert trials.pids != [pid]


def test_each_thread_has_a_process(trials: Trials) -> None:
    thread, errors = begin(trials, "slow", SLOW)
    assert trials.run("small", SMALL) < 1 << 20
    assert len(trials.pids) == 2
    trials.give_up("slow")
    thread.join(PATIENCE_S)
    assert [type(error) for error in errors] == [GivenUpError]


def test_the_end_kills_what_runs_and_nothing_begins_after_it(trials: Trials) -> None:
    trials.run("before", SMALL)
    (pid,) = trials.pids
    thread, errors = begin(trials, "slow", SLOW)
    trials.close()
    thread.join(PATIENCE_S)
    assert [type(error) for error in errors] == [RuntimeError]
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(GivenUpError):
        trials.run("after", SMALL)
