"""Formulas in markdown, found by the page's own modules in Node: which they are, and what hostile texts cost."""

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

SCRIPT = Path(__file__).with_name("formulas.mjs")
# Hundreds of times what the longest takes alone; what an exponential scan needs has no end.
WAIT_S = 50

PIECES = (
    "$",
    "$$",
    "\\$",
    "\\\\",
    "\\",
    "\\[",
    "\\]",
    "\\(",
    "\\)",
    "{",
    "}",
    "\n",
    "\n\n",
    " ",
    "\t",
    "a",
    "5",
    "*",
    "`",
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs texts, each as `(parts, whether more may follow)`, where a part is a string and how often it comes."""
    node = tool("node")
    folder = tmp_path_factory.mktemp("pages") / "static"
    shutil.copytree(FOLDER, folder)
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")

    def run(texts: list[tuple[list[tuple[str, int]], bool]]) -> list[dict[str, Any]]:
        asked = json.dumps([{"parts": parts, "grows": grows} for parts, grows in texts])
        done = subprocess.run(
            [node, str(SCRIPT), str(folder)], input=asked, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        results: list[dict[str, Any]] = json.loads(done.stdout)
        return results

    return run


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        ("$a^2$ and \\(b\\)", [["inlineMath", "$a^2$", "a^2", False], ["inlineMath", "\\(b\\)", "b", False]]),
        ("$5 or $10, $ 5$, $5 $", []),
        (r"$a\$b$", [["inlineMath", r"$a\$b$", r"a\$b", False]]),
        ("in $$x$$ text", [["inlineMath", "$$x$$", "x", True]]),
        ("$$\na $ b\n$$\nend", [["blockMath", "$$\na $ b\n$$\n", "a $ b", True]]),
        (r"$$a\$$$", [["blockMath", r"$$a\$$$", r"a\$", True]]),
        ("\\[\nx \\\\[2pt]\n\\]", [["blockMath", "\\[\nx \\\\[2pt]\n\\]", "x \\\\[2pt]", True]]),
        ("before\n  \\[ x \\]  \nafter", [["blockMath", "  \\[ x \\]  \n", "x", True]]),
        ("$$\na\n\nb\n$$", []),
        ("$$x$$ y", [["inlineMath", "$$x$$", "x", True]]),
        ("`$x$` \\$x$", []),
        ("mail a$@b.org: http://x.y $z$", [["inlineMath", "$z$", "z", False]]),
    ],
)
def test_what_is_a_formula(found: Any, text: str, formulas: list[Any]) -> None:
    assert found([([(text, 1)], False)])[0]["math"] == formulas


def test_one_that_has_begun(found: Any) -> None:
    texts = ["$$\na", "a\n\n\\[ x", "$$\n\na"]
    begun = [result["math"] for result in found([([(text, 1)], True) for text in texts])]
    assert begun == [[["blockMath", "$$\na", "$$\na", True]], [["blockMath", "\\[ x", "\\[ x", True]], []]
    assert not any(result["math"] for result in found([([(text, 1)], False) for text in texts]))


def test_the_text_that_froze_the_page(found: Any) -> None:
    """28 escaped dollars took seconds, and twice as many with each further one."""
    for text in ("$$" + "\\$" * 1000 + "a", "$$" + "\\$\n\t" * 1000 + "]"):
        assert found([([(text, 1)], grows) for grows in (True, False)])


HOSTILE = st.tuples(
    st.lists(st.sampled_from(PIECES), max_size=3).map("".join),
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join),
    st.lists(st.sampled_from(PIECES), max_size=3).map("".join),
)


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(HOSTILE, st.booleans()), min_size=1, max_size=12))
def test_steps_of_generated_texts_do_not_grow_faster_than_they(
    found: Any, texts: list[tuple[tuple[str, str, str], bool]]
) -> None:
    lengths = (500, 1_000, 2_000)
    asked = [
        ([(before, 1), (piece, length), (after, 1)], grows)
        for (before, piece, after), grows in texts
        for length in lengths
    ]
    for (parts, _), result in zip(asked, found(asked), strict=True):
        length = sum(len(part) * times for part, times in parts)
        # With a last paragraph's walk after the bound, and white space at the end of it.
        assert result["steps"] <= 18 * (length + 100), parts


def test_long_texts(found: Any) -> None:
    pieces = ("$", "\\$", "\\[\n", "\\(a ", "$$a$$ b\n", "{", "$$\\$")
    for result in found([([("$$", 1), (piece, 100_000 // len(piece)), ("a\n\n$", 1)], True) for piece in pieces]):
        assert result["steps"] <= 18 * 101_000


def test_definitions_of_macros_are_not_drawn() -> None:
    """KaTeX bounds how often macros are expanded, not how long what they stand for is."""
    text = (FOLDER / "playground/prose/math.js").read_text(encoding="utf-8")
    commands = subprocess.run(
        [
            tool("node"),
            "-e",
            "const source = require('fs').readFileSync(0, 'utf8');"
            "const found = /const DEFINITION = (.*);/.exec(source)[1];"
            "const expression = eval(found);"
            "console.log(JSON.stringify(process.argv.slice(1).map((text) => expression.test(text))))",
            *("\\def\\a{x}", "\\global\\gdef\\a{}", "\\newcommand{\\a}{}", "\\let\\a\\b", "\\renewcommand*\\a{}"),
            *("\\definecolor", "\\left(", "\\letter"),
        ],
        input=text,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert json.loads(commands.stdout) == [True] * 5 + [False] * 3
