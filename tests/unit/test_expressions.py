"""Regular expressions of the package: whatever text they are given, their time grows as it does."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import openai_bls
from tests.unit.attack_texts import LENGTHS, Attack, attacks

ROOT = Path(openai_bls.__file__).parent
FUNCTIONS = {"compile", "match", "search", "fullmatch", "sub", "split", "findall", "finditer"}

MOST_S = 0.004
"""CPU time of a search; a step takes some ten nanoseconds, and what is linear a few thousand of them."""


OF_SHORT_TEXT = {
    r"\S+\.rs:\d+(:\d+)?:? *": "the first 2,000 characters of a message",
    r"^(?P<what>[^|%]*?):?\s*\d+%\|[^|]*\|\s*(?P<done>\d+)/(?P<total>\d+)\b": "progress bars of our own builder",
}
"""Expressions that only see short texts → why."""


class Expression(NamedTuple):
    where: str
    pattern: str
    is_bytes: bool
    functions: frozenset[str]
    """Methods of the expression that are called."""
    flags: int


def expressions() -> Iterator[Expression]:
    """All expressions that are written out in the sources."""
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        used = methods(tree)
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            if ast.unparse(node.func.value) != "re" or node.func.attr not in FUNCTIONS:
                continue
            try:
                pattern = ast.literal_eval(node.args[0])
            except ValueError:
                # Made of names by re.escape, most of them: alternatives without repetition.
                continue
            given = [*node.args[1:], *(keyword.value for keyword in node.keywords if keyword.arg == "flags")]
            names = {part.attr for arg in given for part in ast.walk(arg) if isinstance(part, ast.Attribute)}
            flags = sum(
                getattr(re, name) for name in sorted(names) if isinstance(getattr(re, name, None), re.RegexFlag)
            )
            is_bytes = isinstance(pattern, bytes)
            text = pattern.decode("latin-1") if is_bytes else pattern
            own = frozenset({node.func.attr})
            where = f"{path.relative_to(ROOT)}:{node.lineno}"
            yield Expression(where, text, is_bytes, used.get(node, own) if node.func.attr == "compile" else own, flags)


def methods(tree: ast.Module) -> dict[ast.AST, frozenset[str]]:
    """Calls of `re.compile` → the methods of what they make, where they are seen in the module."""
    names: dict[str, set[str]] = {}
    found: dict[ast.AST, frozenset[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names.setdefault(node.value.id, set()).add(node.attr)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
            found[node.value] = frozenset({node.attr})
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.value] = frozenset(names.get(node.targets[0].id, ()))
    return {call: used & FUNCTIONS for call, used in found.items() if used & FUNCTIONS}


def slow(expression: Expression) -> Attack | None:
    """The first attack that takes too long."""
    pattern = expression.pattern.encode("latin-1") if expression.is_bytes else expression.pattern
    compiled = re.compile(pattern, expression.flags)
    begins = expression.functions <= {"match", "fullmatch"}
    find = (
        compiled.search if not begins else compiled.fullmatch if "fullmatch" in expression.functions else compiled.match
    )
    for attack in attacks(expression.pattern, expression.flags):
        for length in LENGTHS:
            text = attack.text(length)
            if _seconds(find, text.encode("latin-1", "ignore") if expression.is_bytes else text) > MOST_S:
                return attack
    return None


def _seconds(find: object, text: object) -> float:
    """CPU time of a search; of a long one the least of three, since a garbage collection may come between."""
    assert callable(find)
    least = 1e9
    for _ in range(3):
        began = time.thread_time()
        find(text)
        least = min(least, time.thread_time() - began)
        if least <= MOST_S or least > 1:
            break
    return least


@pytest.mark.parametrize("expression", expressions(), ids=lambda one: one.where)
def test_time_grows_with_the_text(expression: Expression) -> None:
    if expression.pattern in OF_SHORT_TEXT:
        return
    assert slow(expression) is None


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(?:a|aa)+b", r"\s+$", r"a.*b.*c", r"(\d+\.?)+x", r"[a-z]+\d"])
def test_what_is_slow_is_found(pattern: str) -> None:
    assert slow(Expression("", pattern, False, frozenset({"search"}), 0)) is not None
