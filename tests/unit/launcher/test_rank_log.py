"""Sentences of Open MPI 4.1.8 and 5.0.11, as they came."""

from __future__ import annotations

import pytest

from openai_bls.launcher.rank_log import RankWatcher

BY_SIGNAL_4 = "mpirun noticed that process rank 1 with PID 0 on node gpu-7 exited on signal 9 (Killed)."
BY_SIGNAL_5 = "prterun noticed that process rank 1 with PID 9559 on node gpu-7 exited on\nsignal 9 (Killed)."
BY_CODE_4 = """mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[18050,1],1]
  Exit code:    3"""
BY_CODE_5 = """prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-gpu-7-9643@1,1]
   Exit code:    3"""


def reason(text: str) -> str | None:
    watcher = RankWatcher(4)
    for line in text.splitlines():
        watcher.feed(line)
    return watcher.reason()


@pytest.mark.parametrize("text", [BY_SIGNAL_4, BY_SIGNAL_5])
def test_a_signal(text: str) -> None:
    assert reason(text) == "rank 1 of 4 on gpu-7 was ended by signal 9 (Killed), and the others were stopped"


@pytest.mark.parametrize("text", [BY_CODE_4, BY_CODE_5])
def test_an_exit_code(text: str) -> None:
    assert reason(text) == "rank 1 of 4 ended with exit code 3, and the others were stopped"


def test_mpirun_knows_better_than_the_guardian() -> None:
    left = "openai_bls: rank 2 has left the others"
    assert reason(left) == "rank 2 of 4 ended by itself, and the others were stopped"
    assert reason(f"{left}\n{BY_SIGNAL_5}") == reason(BY_SIGNAL_5)


def test_the_first_one_counts() -> None:
    assert reason(f"{BY_CODE_4}\n{BY_SIGNAL_4}") == reason(BY_CODE_4)


@pytest.mark.parametrize(
    "text",
    [
        "All nodes which are allocated for this job are already filled.",
        "There are not enough slots available in the system to satisfy the 8",
    ],
)
def test_too_few_slots(text: str) -> None:
    found = reason(text)
    assert found is not None
    assert "--oversubscribe" in found


def test_nothing_of_that_kind() -> None:
    assert reason("I1121 all is well\nsignal 9 (Killed)\nExit code:    3") is None
