"""The docs as a site: built without a warning, with all pages, and nothing in it is fetched from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.docs.pages import PAGES, ROOT

FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//|<link\b[^>]*\bhref=\"?(?:https?:)?//"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    for page in PAGES:
        name = "index.html" if page == "README.md" else re.sub(r"\bdocs/", "", page).replace(".md", ".html")
        assert (site / name).is_file(), page


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert not FETCHED.search(path.read_text(encoding="utf-8")), path.name
    for path in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", path.read_text(encoding="utf-8")), path.name


def test_links_to_files_of_the_repository(site: Path) -> None:
    """A link that leaves docs/ on GitHub leads to a page of the site."""
    page = (site / "operations" / "guards.html").read_text(encoding="utf-8")
    assert 'href="../repository/examples/guard/1/model.py.html"' in page
    assert "TritonPythonModel" in (site / "repository/examples/guard/1/model.py.html").read_text(encoding="utf-8")
    assert (site / "repository" / "clients" / "index.html").is_file()


def test_needs_are_shown(site: Path) -> None:
    assert '<p class="needs">Needs Docker and a GPU.</p>' in (site / "guides/gpu-machine.html").read_text(
        encoding="utf-8"
    )
