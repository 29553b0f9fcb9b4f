"""The page of tools names every form of calls that there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from openai_bls.output.detect import HARMONY, TOOL_FORMATS

PAGE = Path(__file__).parents[3] / "docs/reference/api-tools.md"


def test_the_table_has_every_form_of_calls() -> None:
    _, _, table = PAGE.read_text(encoding="utf-8").partition("| format | of | a call |\n")
    rows = re.findall(r"^\| (`[^|]+`) \|", table.partition("\n\n")[0], re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(named) == sorted([*TOOL_FORMATS, HARMONY])
