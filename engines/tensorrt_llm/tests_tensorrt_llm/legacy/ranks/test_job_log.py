"""Which rank ended a job, by the log of mpirun and the guardian."""

from __future__ import annotations

import pytest

from openai_bls_tensorrt_llm.legacy.ranks.job_log import MpiJobLog

# Sentences of Open MPI 4.1.8 and 5.0.11, as they came.
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


def rank_reason(text: str) -> str | None:
    watcher = MpiJobLog(4)
    for line in text.splitlines():
        watcher.feed(line)
    return watcher.reason()


SIGNAL = "rank 1 of 4 on gpu-7 was ended by signal 9 (Killed), and the others were stopped"
CODE = "rank 1 of 4 ended with exit code 3, and the others were stopped"
LEFT = "openai_bls: rank 2 has left the others"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BY_SIGNAL_4, SIGNAL),
        (BY_SIGNAL_5, SIGNAL),
        (BY_CODE_4, CODE),
        (BY_CODE_5, CODE),
        # The first one counts, but mpirun knows better than the guardian.
        (f"{BY_CODE_4}\n{BY_SIGNAL_4}", CODE),
        (LEFT, "rank 2 of 4 ended, and the others were stopped"),
        (f"{LEFT}\n{BY_SIGNAL_5}", SIGNAL),
        ("All nodes which are allocated for this job are already filled.", "--oversubscribe"),
        ("There are not enough slots available in the system to satisfy the 8", "--oversubscribe"),
        ("I1121 all is well\nsignal 9 (Killed)\nExit code:    3", None),
        # Lines of the request log hold what clients sent.
        ('{"time":"2026-11-28T10:42:51.297Z","model":"not enough slots available"}', None),
        ('2026-11-28T10:42:51.297Z POST /v1/chat/completions 200 model="not enough slots available"', None),
    ],
)
def test_reasons_of_ranks(text: str, reason: str | None) -> None:
    found = rank_reason(text)
    if reason == "--oversubscribe":
        assert reason in (found or "")
    else:
        assert found == reason
