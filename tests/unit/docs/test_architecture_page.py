"""docs/architecture.md names every module of the library once, in its docstring's words, and none that is not there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LIBRARY = ROOT / "openai_bls"
PACKAGES = sorted(path.parent.name for path in LIBRARY.glob("*/__init__.py"))
MAP = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("\n## Module map\n")[2]


def test_the_library_is_its_packages() -> None:
    assert sorted(re.findall(r"^### (\w+)/$", MAP, re.MULTILINE)) == PACKAGES
    assert [path.name for path in LIBRARY.glob("*.py") if path.name != "__init__.py"] == ["__main__.py"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_is_named(package: str) -> None:
    section = re.search(rf"^### {package}/$(.*?)(?=^### |\Z)", MAP, re.MULTILINE | re.DOTALL)
    assert section is not None
    folder = LIBRARY / package
    rows = re.findall(r"^\| `([^`]+)` \| (\S.*) \|$", section[1], re.MULTILINE)
    modules = [str(path.relative_to(folder)) for path in folder.rglob("*.py") if path.name != "__init__.py"]
    assert sorted(name for name, _ in rows) == sorted(modules)
    for name, words in rows:
        docstring = ast.get_docstring(ast.parse((folder / name).read_text(encoding="utf-8"))) or ""
        assert " ".join(docstring.split()).startswith(words), name
