"""Tables in Markdown, and sections of RESULTS.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from benchmarks.support.spread import Spread

MISSING = "n/a"


def number(value: Spread | None, digits: int) -> str:
    """A median with `digits` decimals."""
    if value is None or math.isnan(value.median):
        return MISSING
    return f"{value.median:,.{digits}f}"


def markdown_table(headers: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table, the first column to the left, the others to the right."""
    rule = ["---", *("---:" for _ in headers[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in [headers, rule, *body])


def goals_table(goals: Iterable[tuple[str, str, float, float | None]]) -> str:
    """A row for each goal: its name, its sign, its limit, and what was measured."""
    rows = []
    for name, sign, limit, measured in goals:
        told = MISSING, MISSING
        if measured is not None:
            met = measured >= limit if sign == "≥" else measured <= limit
            told = f"{measured:,.{0 if limit >= 100 else 2}f}", "yes" if met else "no"
        rows.append((name, f"{sign} {limit:,g}", *told))
    return markdown_table(("goal", "at", "measured", "met"), rows)


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


def compact(document: dict[str, object]) -> bytes:
    """JSON with a line for each entry of `document`, and for each element of an entry that is a list."""
    parts = []
    for name, value in document.items():
        text = msgspec.json.encode(value)
        if isinstance(value, list) and value:
            text = b"[\n" + b",\n".join(msgspec.json.encode(one) for one in value) + b"\n]"
        parts.append(msgspec.json.encode(name) + b": " + text)
    return b"{\n" + b",\n".join(parts) + b"\n}\n"
