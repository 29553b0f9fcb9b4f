"""Docs of arguments and attributes name the thing: none only finishes the name that stands before it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.docs.pages import ROOT

LIBRARY = ROOT / "openai_bls"
PACKAGES = sorted(path.parent.name for path in LIBRARY.glob("*/__init__.py"))

_FINISHES = re.compile(
    r"(about|as|at|between|by|for|from|has|holds|in|is|it|its|of|on|per|since|that|the same|their|theirs|those|to|"
    r"told|what|when|where|which|whose|with|without)\b(?!-)|"
    # A possessive without the thing: `settings: the model's.`
    r"([\w`]+ )?[\w`]+('s|s')([.,;:]|$)|"
    r"none if\b",
    re.IGNORECASE,
)
_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):")


class Entry(NamedTuple):
    """Doc of an argument or an attribute."""

    line: int
    name: str
    text: str


def entries(source: str) -> Iterator[Entry]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _arguments(node)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield from _attributes(node)


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Iterator[Entry]:
    """Entries of the sections `Args:` and `Attributes:`, one indent deeper than the docstring; or all on one line."""
    section, first = "", node.body[0].lineno
    docstring = ast.get_docstring(node) or ""
    if docstring.startswith("Args: "):
        yield from (Entry(first, name, said) for name, said in re.findall(r"(\w+): ([^;]+)", docstring[6:]))
    for at, line in enumerate(docstring.splitlines()):
        if title := _SECTION.fullmatch(line):
            section = title[1]
        elif section in ("Args", "Attributes") and (found := re.match(r" {4}\*{0,2}(\w+): (.*)", line)):
            yield Entry(first + at, found[1], found[2])


def _attributes(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> Iterator[Entry]:
    """Strings below assignments."""
    for given, said in zip(node.body, node.body[1:], strict=False):
        if isinstance(given, ast.Assign | ast.AnnAssign) and isinstance(said, ast.Expr):
            name = given.target if isinstance(given, ast.AnnAssign) else given.targets[0]
            if isinstance(said.value, ast.Constant) and isinstance(said.value.value, str):
                yield Entry(said.lineno, ast.unparse(name), said.value.value)


def unfinished(source: str) -> list[Entry]:
    return [entry for entry in entries(source) if _FINISHES.match(entry.text)]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_says_what_it_is(package: str) -> None:
    found = [path for path in (LIBRARY / package).rglob("*.py") if not _has_docstring(path)]
    assert not found


def _has_docstring(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return not tree.body or ast.get_docstring(tree) is not None


@pytest.mark.parametrize("package", PACKAGES)
def test_every_entry_names_the_thing(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{entry.line}: {entry.name}: {entry.text}"
        for path in sorted(Path(LIBRARY / package).rglob("*.py"))
        for entry in unfinished(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text", ["of the model.", "the engine's.", "that it came with.", "None if it has none.", "Its key."]
)
def test_half_a_sentence_is_found(text: str) -> None:
    whole = "settings of the model's process."
    source = f'def f(a, b):\n    """F.\n\n    Args:\n        a: {text}\n        b: {whole}\n    """\n'
    assert unfinished(source) == [Entry(5, "a", text)]
    assert unfinished(f'x = 1\n"""{text}"""\ny = 2\n"""{whole}"""\n') == [Entry(2, "x", text)]
    assert unfinished(f'def f(a, b):\n    """Args: b: {whole[:-1]}; a: {text}"""\n') == [Entry(2, "a", text)]
