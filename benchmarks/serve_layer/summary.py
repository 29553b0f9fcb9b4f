"""Tables of `benchmarks.serve_layer` for the terminal and for RESULTS.md, and its JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from benchmarks.clients.stats import Measurement
from benchmarks.contenders.servers import BARE, GRPC, HTTP, OURS, OURS_TLS, V1
from benchmarks.serve_layer.cells import Results, Shape, Stage, Value
from benchmarks.support.machine import Conditions
from benchmarks.support.report import MISSING, compact, markdown_table, number
from benchmarks.support.spread import Spread

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""Title, headers, rows."""

NOTES = (
    "Every contender emits the same tokens at the same pace, and one client asks all of them. Figures are medians of "
    "the rounds, with the range; `× bare` is the median of the rounds' ratios to the bare model on the same transport "
    "(/v1: on generate_stream). Tokens are counted from the stream's usage: openai_bls may put several into one event "
    "(tok/event) when Triton or a client is slower than the engine, which the bare model cannot. CPU ms/1k: CPU "
    "milliseconds of all processes of the server per 1,000 tokens. TTFT: ms from sending a request to its first text. "
    "ITL: ms from one text event to the next of the same request. Clients and server "
    "share the cores; others: cores busy with anything else. results/serve_layer.json has every measurement."
)

_SCALE = (64, 512)
"""Concurrencies that RESULTS.md shows."""


def rate(one: Measurement) -> float | None:
    """Tokens/s."""
    return one.tokens_per_s


def cpu(one: Measurement) -> float | None:
    """Server CPU seconds per 1,000 tokens."""
    return one.server_cpu_per_1k


def reference(path: str) -> str | None:
    """The bare model's path that the path named `path` in tables is compared with; None for the bare model's own."""
    bare = BARE.label(GRPC if path.endswith(GRPC) else HTTP)
    return None if path == bare else bare


@dataclass(frozen=True)
class Row:
    """The cells of one path at one concurrency, over all rounds."""

    results: Results
    stage: Stage
    path: str
    level: int

    @property
    def every(self) -> list[Measurement]:
        """By round."""
        return list(self.results.rounds(self.stage, self.path, self.level).values())

    def median(self, value: Value) -> Spread | None:
        """Median and range."""
        return self.results.median(self.stage, self.path, self.level, value)

    def against_bare(self, value: Value, by: Callable[[float, float], float], same: str) -> str:
        """The comparison with the bare model; `same` for the bare model itself."""
        bare = reference(self.path)
        if bare is None:
            return same
        return number(self.results.compare(self.stage, (self.path, self.level), (bare, self.level), value, by), 2)


Column = tuple[str, Callable[[Row], str]]
"""Header and cell."""


def _value(header: str, value: Value, digits: int) -> Column:
    return header, lambda row: number(row.median(value), digits)


def _range(value: Value, digits: int) -> Column:
    return "(range)", lambda row: _shown_range(row.median(value), digits)


def _shown_range(value: Spread | None, digits: int) -> str:
    return MISSING if value is None else f"{value.low:,.{digits}f}–{value.high:,.{digits}f}"


def _ratio(value: Value) -> Column:
    return "× bare", lambda row: row.against_bare(value, lambda a, b: a / b, "1")


def _cpu_ms(one: Measurement) -> float | None:
    seconds = one.server_cpu_per_1k
    return None if seconds is None else 1000 * seconds


def _first(one: Measurement) -> float:
    return one.first_token_ms_p50


def _gap(one: Measurement) -> float:
    return one.gap_ms_p99


_PATH: Column = ("path", lambda row: row.path)
_LEVEL: Column = ("conc.", lambda row: str(row.level))
_REQUESTS: Column = ("requests", lambda row: f"{sum(one.requests for one in row.every):,}")
_FAILED: Column = ("failed", lambda row: f"{sum(one.failed for one in row.every):,}")
_OTHERS = _value("others", lambda one: one.others_load, 2)
_TOKENS = _value("tok/event", lambda one: one.tokens_per_event, 2)
_THROUGHPUT = (
    *(_PATH, _LEVEL, _REQUESTS, _FAILED, _value("tokens/s", rate, 0), _range(rate, 0), _ratio(rate)),
    *(_value("CPU ms/1k", _cpu_ms, 1), _range(_cpu_ms, 1), _ratio(cpu), _value("TTFT p50", _first, 1)),
    *(_value("ITL p99", _gap, 2), _TOKENS, _value("events/s", lambda one: one.events_per_s, 0)),
    *(_value("client CPU ms/1k", lambda one: 1000 * one.client_cpu_per_1k, 1), _OTHERS),
)
_ADDED: Column = ("added to bare", lambda row: row.against_bare(_first, lambda a, b: a - b, "0"))
_FIRST_TOKEN = (
    *(_PATH, _REQUESTS, _FAILED, _value("TTFT p50", _first, 2), _range(_first, 2), _ADDED),
    *(_value("TTFT p99", lambda one: one.first_token_ms_p99, 2), _OTHERS),
)
_PACED = (
    *(_PATH, _LEVEL, _FAILED, _value("ITL p50", lambda one: one.gap_ms_p50, 2), _value("ITL p99", _gap, 2)),
    *(_range(_gap, 2), _value("TTFT p50", _first, 2), _value("tokens/s", rate, 0), _TOKENS),
    *(_value("CPU ms/1k", _cpu_ms, 1), _OTHERS),
)


def main_tables(results: Results, levels: Sequence[int] = ()) -> Iterator[Table]:
    """Throughput, at `levels` or at all."""
    yield from _stage("As fast as possible", results, "throughput", _THROUGHPUT, levels)
    yield from _tls(results)


def tables(results: Results) -> Iterator[Table]:
    """All tables, without those that would be empty."""
    yield from main_tables(results)
    yield from _by_process(results)
    yield from _stage("Single requests", results, "first token", _FIRST_TOKEN)
    yield from _stage("At a pace", results, "paced", _PACED)
    yield from _stage("Very many streams", results, "crowd", _THROUGHPUT)


def _stage(
    title: str, results: Results, stage: Stage, columns: Sequence[Column], levels: Sequence[int] = ()
) -> Iterator[Table]:
    paths = dict.fromkeys(one.path for one in results.of(stage))
    rows = [Row(results, stage, path, level) for path in paths for level in levels or results.levels(stage)]
    body = [[cell(row) for _, cell in columns] for row in rows if row.every]
    if body:
        yield title, [header for header, _ in columns], body


def _by_process(results: Results) -> Iterator[Table]:
    """Server CPU time by process, in µs per token, at one level."""
    levels = results.levels("throughput")
    level = 64 if 64 in levels else max(levels, default=0)
    measured = [one for one in results.of("throughput") if one.concurrency == level]
    totals: dict[str, float] = {}
    for one in measured:
        for name, seconds in one.server_cpu_by_process.items():
            totals[name] = totals.get(name, 0.0) + seconds
    names = [name for name in sorted(totals, key=lambda name: -totals[name]) if totals[name] > 0]
    columns = [_PATH, _LEVEL, *(_micros(name) for name in names)]
    columns.append(_value("client", lambda one: one.client_cpu_s / one.tokens * 1e6 if one.tokens else None, 1))
    rows = [Row(results, "throughput", path, level) for path in dict.fromkeys(one.path for one in measured)]
    if names:
        body = [[cell(row) for _, cell in columns] for row in rows]
        yield f"CPU µs per token by process, {level} streams", [header for header, _ in columns], body


def _tls(results: Results) -> Iterator[Table]:
    """What HTTPS costs on /v1."""
    plain, tls = OURS.label(V1), OURS_TLS.label(V1)
    process = _micros("openai_bls")[1]
    body = []
    for level in results.levels("throughput"):
        one, other = (Row(results, "throughput", path, level) for path in (plain, tls))
        if one.every and other.every:
            ratio = results.compare("throughput", (tls, level), (plain, level), rate)
            rates = [number(row.median(rate), 0) for row in (one, other)]
            costs = [process(row) for row in (one, other)]
            body.append([str(level), *rates, number(ratio, 2), _shown_range(ratio, 2), *costs])
    headers = ("conc.", "tokens/s", "HTTPS", "ratio", "(range)", "openai_bls, µs per token", "HTTPS")
    if body:
        yield "HTTPS on /v1", headers, body


def _micros(name: str) -> Column:
    def value(one: Measurement) -> float | None:
        seconds = one.server_cpu_by_process.get(name)
        return None if seconds is None or not one.tokens else seconds / one.tokens * 1e6

    return _value(name, value, 1)


def terminal(results: Results) -> str:
    """All tables and troubles."""
    parts = [f"{title}\n\n{markdown_table(headers, rows)}" for title, headers, rows in tables(results)]
    return "\n\n".join([*parts, *_troubles(results)])


def _troubles(results: Results) -> list[str]:
    failed: dict[str, int] = {}
    for cell in results.cells:
        for message, count in cell.result.failures.items():
            key = f"{cell.result.path}: {message}"
            failed[key] = failed.get(key, 0) + count
    lines = [f"- failed: {failed[key]:,} × {key}" for key in sorted(failed, key=lambda key: -failed[key])]
    lines += [f"- {note}" for note in results.notes]
    return ["\n".join(lines)] if lines else []


def markdown(results: Results, made: Conditions) -> str:
    """The section of RESULTS.md."""
    versions = ", ".join(f"{name} {version}" for name, version in {**made.versions, **results.versions}.items())
    parts = [
        "## The serving layer, side by side",
        f"`{made.command}`",
        f"{made.date}, {made.cores} cores ({made.cpu_model}), load average before {made.load_before}. {versions}.",
        NOTES,
    ]
    for title, headers, rows in main_tables(results, _SCALE):
        parts += [f"### {title}", markdown_table(headers, rows)]
    return "\n\n".join([*parts, *_troubles(results)])


def json_document(results: Results, shape: Shape, made: Conditions) -> bytes:
    """Every single measurement, one object per line; NaN becomes null."""
    cells = []
    for cell in results.cells:
        one = cell.result
        derived = {"server_cpu_per_1k": one.server_cpu_per_1k, "tokens_per_event": one.tokens_per_event}
        derived |= {"events_per_s": one.events_per_s, "others_load": one.others_load}
        cells.append({"stage": cell.stage, "round": cell.round, **asdict(one), **derived})
    return compact(
        {
            "conditions": {**asdict(made), "versions": {**made.versions, **results.versions}},
            "shape": asdict(shape),
            "cells": cells,
            "notes": results.notes,
        }
    )
