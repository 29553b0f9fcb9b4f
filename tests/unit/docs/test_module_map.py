"""docs/module-map.md has every module of the library, in its docstring's words."""

from __future__ import annotations

import re

from tests.unit.docs import module_map


def test_the_library_is_its_packages() -> None:
    page = module_map.PAGE.read_text(encoding="utf-8")
    packages = sorted(path.parent.name for path in module_map.LIBRARY.glob("*/__init__.py"))
    assert sorted(re.findall(r"^## (\w+)/$", page, re.MULTILINE)) == packages
    assert [path.name for path in module_map.LIBRARY.glob("*.py") if path.name != "__init__.py"] == ["__main__.py"]


def test_the_module_map_is_that_of_the_docstrings() -> None:
    """`python -m tests.unit.docs.module_map` writes it."""
    page = module_map.PAGE.read_text(encoding="utf-8")
    assert page == module_map.written(page)


def test_every_module_says_what_it_is() -> None:
    packages = [path.parent.name for path in module_map.LIBRARY.glob("*/__init__.py")]
    assert not [row for package in packages for row in module_map.rows(package).splitlines() if "` |  |" in row]
