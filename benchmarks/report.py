"""Tables for the terminal and for Markdown, JSON, and the sections of RESULTS.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from benchmarks.machine import Conditions
from benchmarks.stats import Measurement, Spread, grouped, spread

HEADERS = (
    "path",
    "conc.",
    "requests",
    "failed",
    "TTFT p50",
    "TTFT p99",
    "ITL p50",
    "ITL p99",
    "tokens/s",
    "(range)",
    "server CPU s/1k",
    "client CPU s/1k",
    "client load",
    "tok/event",
)
LEGEND = (
    "TTFT: ms from sending a request to its first text. ITL: ms from one text event to the next of the same request; "
    "events that arrive together are 0 apart. CPU s/1k: CPU seconds per 1,000 tokens, which is ms a token, of "
    "tritonserver and all its processes, and of the clients. Client load: CPU time of the clients over wall time; near "
    "the number of client processes, the client is what limits the figure. Medians of the repeats."
)
MISSING = "n/a"


def rows(measurements: Sequence[Measurement]) -> list[list[str]]:
    """One row for each path and concurrency, cells in the order of `HEADERS`."""
    return [_row(group) for group in grouped(measurements)]


def _row(group: Sequence[Measurement]) -> list[str]:
    def median(value: Callable[[Measurement], float | None], digits: int) -> str:
        return number(spread(map(value, group)), digits)

    rate = spread(one.tokens_per_s for one in group)
    return [
        group[0].path,
        str(group[0].concurrency),
        str(sum(one.requests for one in group)),
        str(sum(one.failed for one in group)),
        median(lambda one: one.first_token_ms_p50, 1),
        median(lambda one: one.first_token_ms_p99, 1),
        median(lambda one: one.gap_ms_p50, 2),
        median(lambda one: one.gap_ms_p99, 2),
        number(rate, 0),
        MISSING if rate is None or math.isnan(rate.median) else f"{rate.low:,.0f}–{rate.high:,.0f}",
        median(lambda one: one.server_cpu_per_1k, 4),
        median(lambda one: one.client_cpu_per_1k, 4),
        median(lambda one: one.client_load, 2),
        median(lambda one: one.tokens_per_event, 2),
    ]


def number(value: Spread | None, digits: int) -> str:
    """A median with `digits` decimals."""
    if value is None or math.isnan(value.median):
        return MISSING
    return f"{value.median:,.{digits}f}"


def process_table(measurements: Sequence[Measurement]) -> tuple[list[str], list[list[str]]]:
    """Where the server's CPU time goes: headers and rows, in µs a token by process; no rows if it is not known."""
    names: dict[str, float] = {}
    for one in measurements:
        for name, seconds in one.server_cpu_by_process.items():
            names[name] = names.get(name, 0.0) + seconds
    shown = [name for name in sorted(names, key=lambda name: -names[name]) if names[name] > 0]
    body = []
    for group in grouped(measurements):
        cells = [
            number(spread(_micros_per_token(one, one.server_cpu_by_process.get(name)) for one in group), 1)
            for name in shown
        ]
        client = number(spread(_micros_per_token(one, one.client_cpu_s) for one in group), 1)
        body.append([group[0].path, str(group[0].concurrency), *cells, client])
    return ["path", "conc.", *shown, "client"], body if shown else []


def _micros_per_token(one: Measurement, seconds: float | None) -> float | None:
    return None if seconds is None or not one.tokens else seconds / one.tokens * 1e6


def text_table(headers: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Columns in line, the first to the left, numbers to the right."""
    table = [headers, *body]
    widths = [max(len(line[i]) for line in table) for i in range(len(headers))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in table
    )


def markdown_table(headers: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """The same in Markdown."""
    rule = ["---", *("---:" for _ in headers[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in [headers, rule, *body])


def failures(measurements: Sequence[Measurement]) -> dict[str, int]:
    """What failed how often, most frequent first."""
    total: dict[str, int] = {}
    for one in measurements:
        for message, count in one.failures.items():
            key = f"{one.path}: {message}"
            total[key] = total.get(key, 0) + count
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def terminal(measurements: Sequence[Measurement]) -> str:
    """Everything for the terminal."""
    parts = [text_table(HEADERS, rows(measurements))]
    headers, body = process_table(measurements)
    if body:
        parts.append("CPU µs a token by process\n" + text_table(headers, body))
    if failed := failures(measurements):
        parts.append("\n".join(["FAILED", *(f"{count:>8} × {message}" for message, count in failed.items())]))
    return "\n\n".join(parts)


def json_document(series: Mapping[str, Sequence[Measurement]], made: Conditions) -> bytes:
    """Every single measurement by series, with the conditions; NaN becomes null."""
    document: dict[str, Any] = {
        "conditions": asdict(made),
        "series": {title: [asdict(one) for one in measurements] for title, measurements in series.items()},
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def markdown_section(title: str, measurements: Sequence[Measurement], made: Conditions, note: str = "") -> str:
    """A section of RESULTS.md."""
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    parts = [
        f"## {title}",
        f"`{made.command}`",
        f"{made.date}, {made.cores} cores ({made.cpu_model}), load average before {made.load_before}. {versions}.",
        note,
        markdown_table(HEADERS, rows(measurements)),
    ]
    headers, body = process_table(measurements)
    if body:
        parts += ["CPU µs a token by process:", markdown_table(headers, body)]
    if failed := failures(measurements):
        parts.append("\n".join(f"- failed: {count} × {message}" for message, count in failed.items()))
    return "\n\n".join(part for part in parts if part)


def with_section(document: str, key: str, section: str) -> str:
    """`document` with the section marked `key` rewritten, or appended if there is none."""
    begin, end = f"<!-- begin: {key} -->", f"<!-- end: {key} -->"
    marked = f"{begin}\n\n{section.strip()}\n\n{end}"
    before, found, rest = document.partition(begin)
    if not found:
        return f"{document.rstrip()}\n\n{marked}\n".lstrip("\n")
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"'{begin}' without '{end}'")
    return before + marked + after
