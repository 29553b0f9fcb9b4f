"""Summary of a load: percentiles, throughput and goodput, as a table, JSON and a plot."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from openai_bls.terminal.bench.load import Measured

PLOT_SUFFIXES = (".svg", ".png")


class Limits(NamedTuple):
    """Limits that a good answer keeps, in milliseconds."""

    ttft_ms: float
    itl_ms: float


class Summary(NamedTuple):
    """Measurements of a level. Times are in milliseconds, of answers that came whole; None where there is none."""

    load: str
    concurrency: int
    rate: float
    requests: int
    failed: int
    duration_s: float
    prompt_tokens: float | None
    """Mean."""
    output_tokens: float | None
    """Mean."""
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None
    tokens_per_s: float
    requests_per_s: float
    goodput_per_s: float
    """Answers per second that kept both limits."""
    errors: dict[str, int]
    """Sentence → how often."""


def summarize(measured: Measured, limits: Limits) -> Summary:
    """The numbers of one level."""
    whole = [sample for sample in measured.samples if not sample.error]
    ttft = [1e3 * sample.first_s for sample in whole]
    itl = [1e3 * seconds for sample in whole if (seconds := sample.itl_s) is not None]
    good = sum(
        1e3 * sample.first_s <= limits.ttft_ms and 1e3 * (sample.itl_s or 0.0) <= limits.itl_ms for sample in whole
    )
    level, seconds = measured.level, measured.duration_s
    return Summary(
        level.name,
        level.concurrency,
        level.rate,
        len(measured.samples),
        len(measured.samples) - len(whole),
        seconds,
        _mean([sample.prompt_tokens for sample in whole]),
        _mean([sample.tokens for sample in whole]),
        percentile(ttft, 50),
        percentile(ttft, 99),
        percentile(itl, 50),
        percentile(itl, 99),
        sum(sample.tokens for sample in whole) / seconds,
        len(whole) / seconds,
        good / seconds,
        dict(Counter(sample.error for sample in measured.samples if sample.error).most_common()),
    )


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that `percent` of all do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)] if values else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def table(summaries: Sequence[Summary], limits: Limits) -> Table:
    """For a terminal."""
    head = "requests/s" if all(one.rate for one in summaries) else "concurrency"
    found = Table(caption=f"goodput: answers/s with TTFT ≤ {limits.ttft_ms:g} ms and ITL ≤ {limits.itl_ms:g} ms")
    columns = (head, "requests", "failed", "TTFT p50", "p99 ms", "ITL p50", "p99 ms", "tokens/s", "goodput")
    for name in columns:
        found.add_column(name, justify="right", no_wrap=True)
    for one in summaries:
        times = (one.ttft_p50_ms, one.ttft_p99_ms, one.itl_p50_ms, one.itl_p99_ms)
        found.add_row(
            one.load,
            str(one.requests),
            str(one.failed),
            *("–" if value is None else f"{value:.1f}" for value in times),
            f"{one.tokens_per_s:.1f}",
            f"{one.goodput_per_s:.2f}",
        )
    return found


def document(summaries: Sequence[Summary], about: dict[str, Any]) -> dict[str, Any]:
    """For a JSON file."""
    return {**about, "loads": [summary._asdict() for summary in summaries]}


def plot(summaries: Sequence[Summary], path: Path, title: str) -> None:
    """Write throughput and latencies over the load, as the suffix of `path` says.

    Raises:
        OSError: it cannot be written.
    """
    # Without types, and heavy.
    figures = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(10, 3.4), layout="constrained")
    throughput, ttft, itl = figure.subplots(1, 3)
    loads = [one.load for one in summaries]
    throughput.plot(loads, [one.tokens_per_s for one in summaries], marker="o", color="#1f77b4")
    for axes, name in ((ttft, "ttft"), (itl, "itl")):
        for percent, style in (("p50", "-"), ("p99", "--")):
            values = [getattr(one, f"{name}_{percent}_ms") for one in summaries]
            # A level without answers is a gap.
            known = [math.nan if value is None else value for value in values]
            axes.plot(loads, known, style, marker="o", label=percent, color="#d95f02")
        axes.legend()
    for axes, label in ((throughput, "tokens/s"), (ttft, "time to first token, ms"), (itl, "inter-token latency, ms")):
        axes.set_title(label, fontsize=10)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("arrivals" if summaries[0].rate else "requests at a time")
        axes.grid(alpha=0.3)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path)
