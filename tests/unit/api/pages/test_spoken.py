"""Words of an answer as the page has them spoken, by its own module in Node: no marks, no code, pieces of a bound."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openai_bls.api.pages.static_files import FOLDER
from openai_bls.api.tasks.speech.schema import MAX_CHARACTERS
from tests.tools import tool

SCRIPT = """
import { readFileSync } from "node:fs";
const { MOST, piecesOf } = await import(process.argv[1]);
process.stdout.write(JSON.stringify([MOST, JSON.parse(readFileSync(0, "utf8")).map(piecesOf)]));
"""
WAIT_S = 50


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The bound of a piece, and the pieces of each text."""
    folder = tmp_path_factory.mktemp("pages") / "static"
    shutil.copytree(FOLDER, folder)
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    module = (folder / "playground" / "voice" / "spoken.js").as_uri()
    command = [tool("node"), "--input-type=module", "-e", SCRIPT, module]

    def run(*texts: str) -> tuple[int, list[list[str]]]:
        asked = json.dumps(texts)
        done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode == 0, done.stderr
        most, found = json.loads(done.stdout)
        return most, found

    return run


EXAMPLES = {
    "Hello *there*, `x` and **[a link](http://b)**!": "Hello there, x and a link!",
    "# A title\n\nOne line\nand another.": "A title. One line and another.",
    "- first\n- second, *it is*\n  1. third": "first. second, it is. third.",
    "- [x] done\n- [ ] open": "done. open.",
    "Before:\n\n```python\nprint(1)\n```\n\nAfter.": "Before: After.",
    "Before.\n\n    indented code\n\nAfter.": "Before. After.",
    "| a | b |\n|-|-|\n| *c* | d |": "a, b. c, d.",
    "> quoted\n\n---\n\n![a picture](http://x/y.png)": "quoted. a picture.",
    "It is <b>bold</b> here.\n\n<div>kept</div>": "It is bold here. kept.",
    "so $x^2$ it is\n\n$$\n\\int x\n$$\n\nend": "so x^2 it is. end.",
    "1 \\* 2 & 3": "1 * 2 & 3.",
}


def test_what_is_spoken(pieces: Any) -> None:
    _, found = pieces(*EXAMPLES)
    assert {text: " ".join(spoken) for text, spoken in zip(EXAMPLES, found, strict=True)} == EXAMPLES


def test_what_has_no_words(pieces: Any) -> None:
    texts = ("", " \n", "```\nx = 1\n```", "👍", "...", "---", "$$\nx\n$$", "**\u200b**")
    _, found = pieces(*texts)
    assert found == [[]] * len(texts)


def test_the_first_piece_is_short_and_sentences_stay_whole(pieces: Any) -> None:
    sentence = "This is a sentence of no more than sixty characters, No. 1! "
    most, ([first, *others],) = pieces(sentence * 40)
    assert len(first) < most / 4
    assert all(most - len(sentence) < len(piece) <= most for piece in others[:-1])
    assert all(piece.endswith("No. 1!") for piece in (first, *others))
    assert re.sub(r"\s", "", "".join([first, *others])) == re.sub(r"\s", "", sentence * 40)


LETTERS = st.text(st.sampled_from("ab 。.!? \n😀é界👩🏽\u200d💻"), max_size=40)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(LETTERS, st.integers(1, 400)), min_size=1, max_size=20))
def test_generated_texts(pieces: Any, drawn: list[tuple[str, int]]) -> None:
    """Nothing of a text without marks is lost, and no piece is too long for the endpoint or has half a character."""
    texts = [re.sub(r"\n+", "\n", f"x{text * times}") for text, times in drawn]
    most, found = pieces(*texts)
    assert most <= MAX_CHARACTERS
    for text, spoken in zip(texts, found, strict=True):
        assert all(0 < len(piece.encode("utf-16-le")) // 2 <= most for piece in spoken)
        words = [re.sub(r"[^ab界é]", "", part) for part in (text, "".join(spoken))]
        assert words[0] == words[1]
