"""Table of docs/embedded-models.md that says how the embedded engine serves each architecture: read and written."""

from __future__ import annotations

from tests.architectures.comparison import Result
from tests.architectures.table import CASES
from tests.unit.docs.pages import ROOT

PAGE = ROOT / "docs" / "embedded-models.md"
HEADER = "| exact | why not fast | models |\n|---|---|---|\n"
OUTCOMES = ("fast", "slower", "refused")


def write(results: dict[str, Result]) -> None:
    """Put `results` into the page; what it says of other architectures stays."""
    merged = read() | results
    rows: dict[Result, list[str]] = {}
    for name in sorted(CASES, key=str.lower):
        rows.setdefault(merged[name], []).append(name)
    order = sorted(rows, key=lambda result: (OUTCOMES.index(result.outcome), -len(rows[result]), result.reason))
    table = "".join(f"| {one.outcome} | {one.reason} | {', '.join(rows[one])} |\n" for one in order)
    before, _, after = PAGE.read_text(encoding="utf-8").partition(HEADER)
    _, end, rest = after.partition("\n\n")
    PAGE.write_text(before + HEADER + table.rstrip("\n") + end + rest, encoding="utf-8")


def read() -> dict[str, Result]:
    """What the page says, by the name of the case."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").partition(HEADER)[2].partition("\n\n")[0].splitlines():
        outcome, reason, names = (cell.strip() for cell in line.strip().strip("|").split("|"))
        for name in names.split(", "):
            found[name] = Result(outcome, reason)
    return found
