"""The table of forms of calls in docs/reference/api-tools.md, made from the registry and the templates of collections.

The rows, the models and the samples are the page's. `python -m tests.unit.docs.tool_formats` writes the rest anew.
"""

from __future__ import annotations

import re

from openai_bls.output.detect import HARMONY, TOOL_FORMATS
from openai_bls.output.harmony import HARMONY_FORMAT
from openai_bls.output.structured.libraries import guided_decoding
from tests.unit.docs.pages import ROOT, code
from tests.unit.output.chat_templates.rows import table

PAGE = ROOT / "docs" / "reference" / "api-tools.md"
HEADER = "| format | of | a call | thoughts | images | forced |\n|---|---|---|---|---|---|\n"
_FORMATS = {**TOOL_FORMATS, HARMONY: HARMONY_FORMAT}


def written(page: str) -> str:
    """The page with the table's last columns made anew."""
    before, header, rest = page.partition(HEADER)
    assert header, "the table's header is not the one that is written"
    table, _, after = rest.partition("\n\n")
    return before + header + "\n".join(map(_row, table.split("\n"))) + "\n\n" + after


def names(page: str) -> list[str]:
    """The forms that the table names."""
    table = page.partition(HEADER)[2].partition("\n\n")[0]
    return [name for row in table.split("\n") for name in code(re.split(r"(?<!\\)\|", row)[1])]


def _row(row: str) -> str:
    _, forms, models, call, *_ = re.split(r"(?<!\\)\|", row)
    given = [template for template in table().values() if template.calls in code(forms)]
    thoughts = sorted({template.thoughts or "" for template in given}, key=lambda name: (name == "", name))
    images = {template.images for template in given}
    plain = all(_FORMATS[name].style in ("json", *guided_decoding.STYLES) for name in code(forms))
    cells = (
        ", ".join(f"`{name}`" if name else "none" for name in thoughts) or "?",
        "some" if len(images) == 2 else "yes" if True in images else "no",
        "as they are" if plain else "JSON array",
    )
    return f"|{forms}|{models}|{call}| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
