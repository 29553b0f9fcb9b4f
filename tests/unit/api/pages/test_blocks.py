"""Markdown as the page reads it, in Node: whatever a text is made of, the elements that it makes are bounded."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openai_bls.api.pages.static_files import FOLDER
from tests.tools import tool

SCRIPT = Path(__file__).with_name("blocks.mjs")
# Many times what the longest takes alone; four million cells of a table, which no bound would hold, have no end.
WAIT_S = 50

Parts = list[tuple[str, int]]

KINDS = {
    "tables": "|a|\n|-|\n\n",
    "cells": "\n\n" + "|" * 10 + "\n" + "|-" * 10 + "\n|",
    "headings": "#\n",
    "headings with a line": "a\n=\n\n",
    "rules": "---\n",
    "quotes": "> a\n\n",
    "nested quotes": ">>>>>>>> a\n\n",
    "items": "- a\n",
    "loose items": "1. a\n\n",
    "tasks": "- [ ] a\n",
    "nested items": "- - - - - a\n",
    "lists": "- \n+ \n",
    "links": "[a](http:b) ",
    "addresses": "<http:a> ",
    "mail": "a@b.c ",
    "references": "[a] ",
    "images": "![a](b) ",
    "code": "`a` ",
    "blocks of code": "```\na\n```\n",
    "indented code": "    a\n\n-\n",
    "emphasis": "*a* ",
    "strong": "**a** ",
    "struck out": "~a~ ",
    "lines": "a\n",
    "paragraphs": "a\n\n",
    "formulas": "$a$ ",
    "blocks of formulas": "$$\na\n$$\n",
}
PIECES = ("*", "`", "```\n", "[a]", "(b)", "> ", "- ", "1. ", "[ ] ", "# ", "| a ", "\n", "\n\n", "$", "\\", "<b>", "a")
OPTIONS = st.fixed_dictionaries({}, optional={"mayGrow": st.booleans(), "elements": st.integers(0, 300)})


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Reads texts, each as parts: strings and how often they come; the bound on elements, and what is made of each."""
    node = tool("node")
    folder = tmp_path_factory.mktemp("pages") / "static"
    shutil.copytree(FOLDER, folder)
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")

    def run(asked: list[dict[str, Any]]) -> tuple[int, list[dict[str, Any]]]:
        done = subprocess.run(
            [node, str(SCRIPT), str(folder)],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        return answer["most"], answer["results"]

    return run


def test_many_elements_of_any_kind(read: Any) -> None:
    before = ("[a]: http:b\n\n", 1)
    texts: list[Parts] = [[before, (piece, 6_000)] for piece in KINDS.values()]
    most, results = read([{"parts": parts} for parts in texts])
    for kind, result in zip(KINDS, results, strict=True):
        assert result["made"] == result["counted"] <= most + 1, kind
        assert result["complete"], kind
        assert sum(result["plain"]) > 0, kind


def test_a_long_answer_as_models_write_them(read: Any) -> None:
    block = "## Part\n\nSome *prose* and `code`.\n\n- one\n- two\n\n```python\nx = 1\n```\n\n|a|b|\n|-|-|\n|1|2|\n\n"
    most, (result,) = read([{"parts": [(block, 200)]}])
    assert not result["plain"]
    assert most / 2 < result["counted"] == result["made"]


def test_cells_of_a_table(read: Any) -> None:
    """A row of one character has as many as the first; that table alone stays as it was written."""
    wide: Parts = [("start\n\n", 1), ("|a", 2_000), ("\n", 1), ("|-", 2_000), ("\na", 2_000), ("\n\n# end", 1)]
    small = "\n\n" + "|a" * 60 + "\n" + "|-" * 60 + "\n|" * 60 + "\n\n"
    most, (one, many) = read([{"parts": wide}, {"parts": [(small, 1_000)]}])
    assert one["types"] == ["paragraph", "space", "plain", "heading"]
    assert (one["made"], one["complete"]) == (3, True)
    assert many["made"] == many["counted"] <= most
    assert (many["types"], many["complete"]) == (["space", "table", "plain"], True)


def test_the_last_block_while_it_grows(read: Any) -> None:
    _, (cut, whole) = read([{"parts": [("*a* ", 20)], "most": most} for most in (20, 21)])
    assert (cut["types"], cut["made"]) == (["plain"], 1)
    assert (whole["types"], whole["made"]) == (["paragraph"], 21)


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join), OPTIONS),
        min_size=1,
        max_size=12,
    )
)
def test_generated_texts(read: Any, texts: list[tuple[str, dict[str, Any]]]) -> None:
    most, results = read([{"parts": [("start ", 1), (piece, 300)], "options": options} for piece, options in texts])
    for (piece, options), result in zip(texts, results, strict=True):
        # And one that holds the rest.
        assert result["made"] == result["counted"] <= options.get("elements", most) + 1, (piece, options)
        assert result["complete"], (piece, options)
