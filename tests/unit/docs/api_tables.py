"""Tables of fields in docs/api*.md, made from what is said of the fields where they are declared.

The order of the fields is the page's. `python -m tests.unit.docs.api_tables` writes the rest anew.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import textwrap
from pathlib import Path
from typing import Any

import msgspec.inspect as mi

from openai_bls.api.chat.schema import ChatCompletionRequest, CompletionRequest
from openai_bls.api.messages.schema import MessagesRequest
from openai_bls.api.openapi.field_docs import field_docs
from openai_bls.api.openapi.json_schema import is_passed_on, verdict
from openai_bls.api.registry import ENDPOINTS
from openai_bls.api.responses.schema import CreateRequest
from tests.unit.docs.pages import MAX_CELL_CHARS, ROOT, code, text

_REFERENCE = ("api-tools", "api-responses", "api-endpoints", "metrics")
PAGES = ["docs/api.md", *(f"docs/reference/{name}.md" for name in _REFERENCE)]
TABLES: dict[tuple[str, ...], tuple[Any, ...]] = {
    ("Both", "Chat completions only"): (ChatCompletionRequest,),
    ("Both", "Completions only"): (CompletionRequest,),
    ("Responses",): (CreateRequest,),
    ("Messages",): (MessagesRequest,),
}
"""Sections → the bodies whose fields their tables list."""

_ROW = re.compile(r"\| (`.*?) \|.*\|")
REFUSALS = {cls: fields for e in ENDPOINTS for cls, fields in e.operation.unsupported.items()}


def rewritten(page: str) -> str:
    """The text of a page with these tables made from the code: fields of one row that differ get rows of their own."""
    sections: dict[str, tuple[Any, ...]] = {}
    for titled, bodies in TABLES.items():
        for name in titled:
            sections[name] = sections.get(name, ()) + bodies
    lines, section = [], ""
    table: set[str] = set()
    given = text(page).split("\n")
    for at, line in enumerate(given):
        if line.startswith("#"):
            section = line.lstrip("# ")
        row = _ROW.fullmatch(line)
        if row is not None and not _ROW.fullmatch(given[at - 1]):
            rows_of_table = itertools.takewhile(bool, map(_ROW.fullmatch, given[at:]))
            table = {name for one in rows_of_table if one is not None for name in code(one[1])}
        if row is None or section not in sections:
            lines.append(line)
            continue
        names = code(row[1])
        # Bodies of one section may have fields of the same name.
        known = [cls for cls in sections[section] if set(names) <= set(cls.__struct_encode_fields__)]
        cls = max(known, key=lambda cls: len(table.intersection(cls.__struct_encode_fields__)))
        rows: dict[str, list[str]] = {}
        for name in names:
            rows.setdefault(_cell(name, cls, page), []).append(f"`{name}`")
        lines += [f"| {line} | {cell} |" for cell, fields in rows.items() for line in _lines(fields)]
    return "\n".join(lines)


def _lines(fields: list[str]) -> list[str]:
    """Names of fields, with commas between, in as many cells as are readable."""
    wrapped = textwrap.wrap(", ".join(fields), MAX_CELL_CHARS, break_long_words=False)
    return [line.rstrip(",") for line in wrapped]


def _cell(name: str, cls: Any, page: str) -> str:
    judged = verdict(cls, name, REFUSALS)
    if judged == "neutral":
        return "neutral: " + ", ".join(f"`{json.dumps(value)}`" for value in REFUSALS[cls][name].values)
    if judged == "refused":
        return "refused"
    info: Any = mi.type_info(cls)
    if cls is not ChatCompletionRequest and any(f.encode_name == name and is_passed_on(f) for f in info.fields):
        return "as on chat completions"
    said = re.sub(r"^No effect(\.|: )", "", field_docs(cls).get(name, ""))
    cell = f"{judged}. {said[0].upper()}{said[1:]}" if said else judged
    return re.sub(r'"([^"]+)"', lambda m: _link(m[1], page) or m[0], cell).replace("|", "\\|")


def _link(title: str, page: str) -> str:
    """Link from `page` to the section of this title; empty if no page has one."""
    place = next((place for place in PAGES if re.search(rf"^#+ {re.escape(title)}$", text(place), re.MULTILINE)), None)
    if place is None:
        return ""
    path = "" if place == page else os.path.relpath(place, Path(page).parent)
    return f"[{title}]({path}#{title.lower().replace(' ', '-')})"


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(rewritten(page), encoding="utf-8")
