"""Table of docs/embedded-models.md that says how the embedded engine serves each architecture: read and written."""

from __future__ import annotations

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.architectures.comparison import Result
from tests.architectures.table import CASES
from tests.unit.docs.pages import ROOT

PAGE = ROOT / "docs" / "embedded-models.md"
HEADER = "| architecture | models | exact | why not fast |\n|---|---|---|---|\n"
OUTCOMES = ("fast", "slower", "refused")


def write(results: dict[str, Result]) -> None:
    """Put `results` into the page; what it says of other architectures stays."""
    merged = read() | results
    rows: dict[tuple[str, str, str], list[str]] = {}
    for name in sorted(CASES, key=str.lower):
        result = merged[name]
        architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[CASES[name].model_type]
        rows.setdefault((architecture, result.outcome, result.reason), []).append(name)
    table = "".join(
        f"| `{architecture}` | {', '.join(names)} | {outcome} | {reason} |\n"
        for (architecture, outcome, reason), names in rows.items()
    )
    before, _, after = PAGE.read_text(encoding="utf-8").partition(HEADER)
    _, end, rest = after.partition("\n\n")
    PAGE.write_text(before + HEADER + table.rstrip("\n") + end + rest, encoding="utf-8")


def read() -> dict[str, Result]:
    """What the page says, by the name of the case."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").partition(HEADER)[2].partition("\n\n")[0].splitlines():
        _, names, outcome, reason = (cell.strip() for cell in line.strip().strip("|").split("|"))
        for name in names.split(", "):
            found[name] = Result(outcome, reason)
    return found
