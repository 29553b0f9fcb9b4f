"""Engines import of the server what docs/architecture/engines.md lists as its public API, and the list is no longer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import DOCS, ROOT

TITLE = "## What an engine may import\n"
LEGACY = "`legacy/`"
PACKAGES = sorted(path.parent for path in ROOT.glob("engines/*/openai_bls_*/__init__.py"))


def listed() -> dict[str, str]:
    """Module or package that an engine may import → what the table says that it is for."""
    page = (DOCS / "architecture" / "engines.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \| (.*) \|$", page.partition(TITLE)[2].partition("\n## ")[0], re.MULTILINE)
    return {f"openai_bls.{name}": use for names, use in rows for name in re.findall(r"`([\w.]+)`", names)}


def imported(package: Path) -> Iterator[tuple[str, str]]:
    """Modules of the server that a package of an engine imports, each with the file that does."""
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "openai_bls":
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    place = ROOT / name.replace(".", "/")
                    yield (name if place.is_dir() or place.with_suffix(".py").is_file() else str(node.module)), file
            elif isinstance(node, ast.Import):
                yield from ((alias.name, file) for alias in node.names if alias.name.startswith("openai_bls."))


def is_in(module: str, public: str) -> bool:
    return module == public or module.startswith(f"{public}.")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_an_engine_imports_the_public_api(package: Path) -> None:
    table = listed()
    for module, file in imported(package):
        uses = [use for public, use in table.items() if is_in(module, public)]
        assert uses, f"{file} imports {module}"
        assert LEGACY not in uses[0] or package.name == "openai_bls_tensorrt_llm", f"{file} imports {module}"


def test_the_list_has_nothing_that_no_engine_imports() -> None:
    found = {module for package in PACKAGES for module, _ in imported(package)}
    assert len(PACKAGES) == 4
    assert {public for public in listed() if not any(is_in(module, public) for module in found)} == set()


def test_every_module_of_the_list_is_there() -> None:
    for public in listed():
        place = ROOT / public.replace(".", "/")
        assert place.is_dir() or place.with_suffix(".py").is_file(), public
