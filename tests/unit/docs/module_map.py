"""The page docs/module-map.md, written from the docstrings: `python -m tests.unit.docs.module_map`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
LIBRARY = ROOT / "openai_bls"
PAGE = ROOT / "docs" / "module-map.md"

_ROW = re.compile(r"^\| `([^`]+\.py)` \| .* \|\n", re.MULTILINE)


def rows(package: str) -> str:
    """Rows of a package's table: each module with the first sentence of its docstring."""
    folder = LIBRARY / package
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*.py") if path.name != "__init__.py"}
    names = sorted(found, key=lambda name: (name.count("/"), name))
    return "".join(f"| `{name}` | {_first_sentence(found[name])} |\n" for name in names)


def written(page: str) -> str:
    """`page` with the rows of today's modules."""
    parts = re.split(r"^(## \w+/)$", page, flags=re.MULTILINE)
    for number in range(1, len(parts), 2):
        package, section = parts[number][3:-1], parts[number + 1]
        begin = section.index("|---|---|\n") + len("|---|---|\n")
        parts[number + 1] = section[:begin] + rows(package) + _ROW.sub("", section[begin:])
    return "".join(parts)


def _first_sentence(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[a-z`)\]])\.(?= [A-Z]|$)", paragraph)[0].rstrip(".")


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
