"""What very long prompts do to streams that are in progress."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import Bench
from benchmarks.cells import LongPrompt
from benchmarks.contenders.servers import V1
from benchmarks.driver import Clients, make_requests
from benchmarks.stats import ClientReport, analyse, merge, percentile_ms

_STREAMS = 32
_PROMPTS = 4
# Until all streams have begun and run evenly, and between one long prompt and the next.
_SETTLE_S = 0.8
_QUIET_S = 0.5
# For what a long prompt of a few thousand milliseconds at the worst takes: the streams must outlast it.
_PROMPT_S = 0.6

Window = tuple[float, float]


def long_prompts(bench: Bench, clients: Clients, number: int) -> LongPrompt:
    """Run some streams, and beside them send a few very long prompts one after another.

    Args:
        clients: run the streams; the long prompts are sent from this process.
        number: of the round.

    Raises:
        OSError: the server cannot be reached.
    """
    shape = bench.shape
    length_s = _SETTLE_S + _QUIET_S + _PROMPTS * (_QUIET_S + _PROMPT_S)
    streams = replace(
        bench.plan(V1, _STREAMS, requests=_STREAMS, seed=number),
        output_tokens=max(1, round(length_s * 1000 / max(shape.step_delay_ms, 1.0))),
    )
    prompt = replace(bench.plan(V1, 1, requests=1), prompt_words=bench.words(shape.long_prompt_tokens), output_tokens=1)
    begun = time.monotonic()
    futures = clients.start(streams)
    time.sleep(_SETTLE_S)
    reports = []
    for i in range(_PROMPTS):
        time.sleep(_QUIET_S)
        traces, cpu_s = make_requests(replace(prompt, seed=1000 * number + i))
        reports.append(analyse(traces, prompt, cpu_s))
    beside = merge([future.result() for future in futures])
    alone = merge(reports)
    windows = [(report.started, report.ended) for report in reports]
    within, quiet = split_gaps(beside, windows, begun + _SETTLE_S)
    return LongPrompt(
        path=bench.contender.label(V1),
        round=number,
        streams=_STREAMS,
        prompt_tokens=alone.prompt_tokens // max(len(alone.first_token), 1),
        first_token_ms=percentile_ms(alone.first_token, 50),
        quiet_gap_ms_p99=percentile_ms(quiet, 99),
        gap_ms_p99=percentile_ms(within, 99),
        gap_ms_max=percentile_ms(within, 100),
        gaps=len(within),
        failures=dict(beside.failures + alone.failures),
    )


def split_gaps(
    report: ClientReport, windows: list[Window], settled: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The gaps that lie within one of `windows`, if only in part, and those after `settled` that do not."""
    begins, ends = report.gap_ends - report.gaps, report.gap_ends
    within = np.zeros(len(ends), dtype=bool)
    for start, end in windows:
        within |= (begins < end) & (ends > start)
    return report.gaps[within], report.gaps[~within & (begins > settled)]
