"""Words that make the pages hard to read stay out of them; code and comments are not counted."""

from __future__ import annotations

import re

import pytest

from tests.unit.docs.pages import PAGES, text

_EVERYWHERE = r"beside|nobody|whoever"
_PLAIN = re.compile(r"README|SECURITY|docs/(guides/|operations|reference/other-models|serving)")
_IN_PLAIN = rf"{_EVERYWHERE}|alone|of (its|their) own|(of|by|with|from) (which|whom)|some \d"


def found(markdown: str, words: str) -> list[str]:
    prose = re.sub(r"```.*?```|<!--.*?-->|`[^`]*`", lambda part: "\n" * part[0].count("\n"), markdown, flags=re.DOTALL)
    lines = enumerate(prose.splitlines(), 1)
    return [f"{number}: {match[0]}" for number, line in lines for match in re.finditer(rf"\b({words})\b", line, re.I)]


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "SECURITY.md"])
def test_a_page_says_it_plainly(page: str) -> None:
    assert not found(text(page), _IN_PLAIN if _PLAIN.match(page) else _EVERYWHERE)


def test_a_word_is_found_with_its_line() -> None:
    assert found("`beside`\n\n```\nnobody\n```\nWhoever asks", _EVERYWHERE) == ["6: Whoever"]
