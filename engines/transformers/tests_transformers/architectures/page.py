"""Tables of engines/transformers/docs/models.md, which say how the embedded engine serves each architecture."""

from __future__ import annotations

from collections.abc import Collection

from tests.unit.docs.pages import MAX_CELL_CHARS, ROOT
from tests_transformers.architectures.comparison import Result

PAGE = ROOT / "engines" / "transformers" / "docs" / "models.md"
TEXT = "| exact | why not fast | models |\n|---|---|---|\n"
"""Header of the table of language models."""
IMAGES = "| with images | why not fast | models |\n|---|---|---|\n"
"""Header of the table of models that take images."""
OUTCOMES = ("fast", "slower", "refused")


def write(results: dict[str, Result], cases: Collection[str], header: str = TEXT) -> None:
    """Put `results` into a table of the page that lists `cases`; what it says of other architectures stays."""
    merged = read(header) | results
    rows: dict[Result, list[str]] = {}
    for name in sorted(cases, key=str.lower):
        rows.setdefault(merged[name], []).append(name)
    order = sorted(rows, key=lambda result: (OUTCOMES.index(result.outcome), -len(rows[result]), result.reason))
    table = "".join(f"| {one.outcome} | {one.reason} | {names} |\n" for one in order for names in _cells(rows[one]))
    before, _, after = PAGE.read_text(encoding="utf-8").partition(header)
    _, end, rest = after.partition("\n\n")
    PAGE.write_text(before + header + table.rstrip("\n") + end + rest, encoding="utf-8")


def _cells(names: list[str]) -> list[str]:
    """Names with commas between, in as many cells as are readable."""
    cells = [""]
    for name in names:
        longer = f"{cells[-1]}, {name}" if cells[-1] else name
        if len(longer) <= MAX_CELL_CHARS:
            cells[-1] = longer
        else:
            cells.append(name)
    return cells


def read(header: str = TEXT) -> dict[str, Result]:
    """What a table of the page says, by the name of the case."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").partition(header)[2].partition("\n\n")[0].splitlines():
        outcome, reason, names = (cell.strip() for cell in line.strip().strip("|").split("|"))
        for name in names.split(", "):
            found[name] = Result(outcome, reason)
    return found
