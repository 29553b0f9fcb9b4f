"""Report of a run: one page of Markdown."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping

from tests.torture.attacks.judgement import Fought
from tests.torture.processes.rests import Growth, growths
from tests.torture.processes.samples import History
from tests.torture.record import Broken, Record
from tests.torture.run import Options, Run

_MOST_FINDINGS = 30


def page(run: Run, options: Options) -> str:
    """The report."""
    record = run.record
    streams = sum(sum(counts.values()) for counts in record.streams.values())
    lines = [
        "# Torture",
        "",
        f"{f'FAILED: {len(record.findings)} findings' if record.findings else 'Passed'}. Seed {options.seed}, "
        f"{run.seconds:.0f} s, {record.cases:,} cases ({record.cases / max(run.seconds, 1):.0f}/s), {streams:,} known "
        f"streams, {len(record.faults)} faults.",
        "",
    ]
    if not run.has_disks:
        lines += ["Nobody may mount here: a full disk and a full /dev/shm were left out.", ""]
    if missing := run.missing_faults():
        lines += [f"Never came up: {', '.join(missing)}.", ""]
    if record.findings:
        lines += ["## Findings", ""]
        lines += [f"- {count} × {head}" for head, count in record.heads.most_common(_MOST_FINDINGS)]
        lines += [""]
    lines += _table(f"Attacks, and the CPU time in which bob's answers came ({_quiet(record)})", [
        "attack", "answers", "event loop, at most", *(f"bob's {name}, at most" for name in record.quiet)
    ], [_attack(fought, list(record.quiet), record.quiet) for fought in record.fought])  # fmt: skip
    lines += _table("Cases", ["door", "cases", "answers", "slowest with nothing broken"], [
        [door, f"{sum(counts.values()):,}", _counts(counts), f"{record.slowest.get(door, 0):.2f} s"]
        for door, counts in sorted(record.statuses.items())
    ])  # fmt: skip
    lines += _table("Known streams", ["door", "asked", "ended"], [
        [door, f"{sum(counts.values()):,}", _counts(counts)] for door, counts in sorted(record.streams.items())
    ])  # fmt: skip
    lines += _table("Clients that behave badly", ["client", "times", "ended"], [
        [name, f"{sum(counts.values()):,}", _counts(counts)] for name, counts in sorted(record.antics.items())
    ])  # fmt: skip
    lines += _table(
        "Faults",
        [
            "fault",
            "times",
            "how it ended",
            "recovery, median",
            "max",
            "of it back-off, max",
            "known streams that met it",
        ],
        _faults(record.faults),
    )
    lines += _table(
        "Processes",
        ["process", "lived", "MB first", "MB last", "MB peak of all", "MB/min", "files", "files/min"],
        [_process(history, run.samples.peak_mb(history.name)) for history in run.samples.longest()],
    )
    lines += _table(
        f"At rest, first and last of {len(run.rests)}",
        ["process", "MB", "MB/h", "threads", "threads/h", "files", "files/h", "kinds that grew or shrank"],
        [_growth(growth) for growth in growths(run.rests)],
    )
    return "\n".join(lines)


def _quiet(record: Record) -> str:
    return ", ".join(f"{name} {cpu_s:.2f} s" for name, cpu_s in record.quiet.items()) + " with nobody else"


def _attack(fought: Fought, names: list[str], quiet: Mapping[str, float]) -> list[str]:
    return [
        *(fought.name, _counts(fought.outcome.told), f"{fought.most_loop_s():.2f} s"),
        *(f"{fought.most_cpu_s(name, quiet):.2f} s" for name in names),
    ]


def _growth(growth: Growth) -> list[str]:
    first, last = growth.first, growth.last
    # Not -0.0.
    memory, threads, files = (f"{round(slope, 1) + 0.0:+.1f}" for slope in growth.per_hour)
    kinds = ", ".join(f"{kind} {more:+d}" for kind, more in growth.kinds.items())
    return [
        *(first.name, f"{first.resident_mb:.0f} → {last.resident_mb:.0f}", memory),
        *(f"{first.threads} → {last.threads}", threads, f"{first.files.total()} → {last.files.total()}", files, kinds),
    ]


def _process(history: History, peak_mb: float) -> list[str]:
    slopes = history.slopes()
    memory, files = (f"{slope:+.2f}" for slope in slopes) if slopes else ("", "")
    return [
        *(history.name, f"{history.lifetime:.0f} s", f"{history.resident_mb[0]:.0f}", f"{history.resident_mb[-1]:.0f}"),
        *(f"{peak_mb:.0f}", memory, f"{history.files[0]} → {history.files[-1]}", files),
    ]


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common())


def _table(title: str, head: list[str], rows: list[list[str]]) -> list[str]:
    if not rows:
        return []
    texts = [head, ["---"] * len(head), *rows]
    return [f"## {title}", "", *(f"| {' | '.join(row)} |" for row in texts), ""]


def _faults(faults: list[Broken]) -> list[list[str]]:
    by_name: defaultdict[str, list[Broken]] = defaultdict(list)
    for fault in faults:
        by_name[fault.name].append(fault)
    rows = []
    for name, same in by_name.items():
        times = [fault.recovery for fault in same if fault.recovery is not None]
        streams = sum((fault.streams for fault in same), Counter[str]())
        rows.append([
            name,
            str(len(same)),
            _counts(Counter(fault.outcome for fault in same)),
            f"{statistics.median(times):.1f} s" if times else "never",
            f"{max(times):.1f} s" if times else "never",
            f"{max(fault.waited for fault in same):.0f} s",
            _counts(streams),
        ])  # fmt: skip
    return rows
