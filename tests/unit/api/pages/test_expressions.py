"""Regular expressions of the pages: whatever a model or a file says, their time grows as the text does."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pygments.lexers.javascript import JavascriptLexer  # type: ignore[import-untyped]
from pygments.token import String  # type: ignore[import-untyped]

from openai_bls.api.pages.static_files import FOLDER
from tests.tools import tool
from tests.unit.attack_texts import LENGTHS, as_python, attacks

SCRIPT = Path(__file__).with_name("expressions.mjs")
MOST_S = 0.004
# What is exponential may take a while at the length at which it is found.
WAIT_S = 50


def expressions() -> list[tuple[str, str, str]]:
    """File, pattern and flags of each expression in our own modules."""
    found = []
    for path in sorted(FOLDER.rglob("*.js")):
        if "vendor" in path.parts:
            continue
        for kind, text in JavascriptLexer().get_tokens(path.read_text(encoding="utf-8")):
            if kind is String.Regex:
                pattern, _, flags = text.removeprefix("/").rpartition("/")
                found.append((path.relative_to(FOLDER).as_posix(), pattern, flags))
    return found


def slow(asked: list[tuple[str, str]]) -> list[Any]:
    """The first attack on each expression that takes too long, or None."""
    given = {
        "expressions": [
            {"pattern": pattern, "flags": flags, "attacks": attacks(as_python(pattern))} for pattern, flags in asked
        ],
        # Steps are quicker here.
        "lengths": [*LENGTHS, 8000],
        "most": MOST_S,
    }
    done = subprocess.run(
        [tool("node"), str(SCRIPT)],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: list[Any] = json.loads(done.stdout)
    return answer


def test_they_are_found() -> None:
    """As a plain search for what looks like one has them."""
    found = expressions()
    source = "".join(path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.js") if "vendor" not in path.parts)
    assert len(found) > 30
    assert "new RegExp" not in source
    assert len(re.findall(r"/[a-z]*\.(?:exec|test)\(", source)) <= len(found)


@pytest.mark.parametrize("file", sorted({file for file, _, _ in expressions()}))
def test_time_grows_with_the_text(file: str) -> None:
    asked = [(pattern, flags) for where, pattern, flags in expressions() if where == file]
    assert [(one, attack) for one, attack in zip(asked, slow(asked), strict=True) if attack] == []


def test_what_is_slow_is_found() -> None:
    asked = [
        (pattern, "") for pattern in (r"(a+)+$", r"(?:a|aa)+b", r"\s+$", r"\$\$((?:\\[^]|\\\$|[^$])+)\$\$", r"x*y")
    ]
    assert all(slow(asked))
