"""The chat templates of llama.cpp's and vLLM's collections, as the marks that tell their forms.

The templates are not here, but of each the strings that look like markers or are looked for: in `rows.json`,
with the forms of calls and thoughts that its models write. `python -m tests.unit.output.chat_templates.rows
NAME=FOLDER ...` reads templates anew: the marks are theirs, the forms of a template that is new are to be looked at.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from openai_bls.output import detect as detection
from openai_bls.output import harmony
from openai_bls.output.detect import TOOL_FORMATS, ModelFormats, detect
from openai_bls.output.reasoning_forms import REASONINGS, SIGNS
from openai_bls.output.tool_parsers.formats import written

TABLE = Path(__file__).with_suffix(".json")
# What stands between brackets like a marker, with what may make it a part of a longer one.
_MARKER = re.compile(r"[\[\]|｜~&#@%^*]{0,3}<[^<>\s'\"{}()]{1,40}>|\[/?[A-Z_]{3,}\]|>{3}")
_IMAGE = re.compile(r"['\"](?:input_)?image(?:_url)?['\"]|<\|?(?:image|vision)")


class Row(NamedTuple):
    """What a template's models write, and what tells it."""

    calls: str | None
    """Name of the form; None if it is not known, or there are none."""
    thoughts: str | None
    tools: bool
    """The template takes tools."""
    thinks: bool
    """The template has signs of thoughts."""
    images: bool
    """The template has places for images."""
    marks: tuple[str, ...]

    @property
    def template(self) -> str:
        """A template with these marks and no others."""
        code = ["{% if tools %}{% endif %}"] * self.tools + ["{{ message.reasoning_content }}"] * self.thinks
        return "\n".join((*self.marks, *code))


def table() -> dict[str, Row]:
    """The rows by collection and template."""
    found: dict[str, dict[str, Any]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return {name: Row(**{**row, "marks": tuple(row["marks"])}) for name, row in found.items()}


def names(formats: ModelFormats) -> tuple[str | None, str | None]:
    """The names of a model's forms of calls and thoughts."""
    if formats.harmony:
        return detection.HARMONY, detection.HARMONY
    thoughts = (name for name, reasoning in REASONINGS.items() if reasoning is formats.reasoning)
    return formats.tool_format.name if formats.tool_format else None, next(thoughts, None)


def read(template: str, known: Row | None = None) -> Row:
    """The row of a template, with the forms of a row that is known."""
    plain = written(template)
    calls, thoughts = (known.calls, known.thoughts) if known else names(detect(template))
    return Row(
        calls,
        thoughts,
        detection.takes_tools(template),
        detection.has_thoughts(template),
        _IMAGE.search(template) is not None,
        tuple(sorted({*_MARKER.findall(plain), *filter(None, (_found(mark, plain) for mark in _looked_for()))})),
    )


def _looked_for() -> set[str]:
    signs = [sign for form in TOOL_FORMATS.values() for sign in form.signs]
    signs += [sign for any_of in SIGNS.values() for sign in any_of]
    marks = {mark for sign in signs for mark in (*sign.has, *sign.lacks)}
    return {
        *marks,
        *harmony.MARKERS,
        "<|start|>assistant",
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
    }


def _found(mark: str, plain: str) -> str | None:
    """The mark, with what makes it a part of a longer one wherever it stands."""
    at = plain.find(mark)
    if at < 0:
        return None
    while at > 0 and plain[at - 1] in "[]|｜~&#@%^*":
        following = plain.find(mark, at + 1)
        if following < 0:
            return plain[at - 1] + mark
        at = following
    return mark


def main(collections: list[str]) -> None:
    """Read the templates of folders, each given with the name of its collection."""
    known = table() if TABLE.is_file() else {}
    for name, _, folder in (given.partition("=") for given in collections):
        known = {key: row for key, row in known.items() if not key.startswith(f"{name}/")} | {
            f"{name}/{file.stem}": read(file.read_text(encoding="utf-8"), known.get(f"{name}/{file.stem}"))
            for file in sorted(Path(folder).glob("*.jinja"))
        }
    rows = [f"{json.dumps(key)}: {json.dumps(row._asdict(), ensure_ascii=False)}" for key, row in sorted(known.items())]
    TABLE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
