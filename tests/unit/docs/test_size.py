"""What a reader can take in: cells of tables that fit into a line or two, and docs that do not grow."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.unit.docs.pages import MAX_CELL_CHARS, PAGES, READMES, RESULTS, rows, text

MAX_LINES = 3_200
"""Lines of docs/."""
MAX_ENGINE_LINES = 650
"""Lines of the engines' docs/ and READMEs together."""
ALL = (*PAGES, *READMES, *RESULTS, "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


@pytest.mark.parametrize("page", ALL)
def test_no_cell_is_a_paragraph(page: str) -> None:
    cells = [cell for row in rows(page) for cell in (*row.header, *row.cells)]
    assert not [cell for cell in cells if len(cell) > MAX_CELL_CHARS]


def test_pages_with_tables_were_read() -> None:
    assert len([page for page in ALL if rows(page)]) > 40


def lines(pages: Iterable[str]) -> int:
    return sum(text(page).count("\n") for page in pages)


def test_the_docs_do_not_grow() -> None:
    assert lines(page for page in PAGES if page.startswith("docs/")) <= MAX_LINES
    assert lines(page for page in (*PAGES, *READMES) if page.startswith("engines/")) <= MAX_ENGINE_LINES
