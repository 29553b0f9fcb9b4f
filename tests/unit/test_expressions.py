"""Regular expressions of the package: whatever text they are given, their time grows as it does."""

from __future__ import annotations

import argparse
import ast
import asyncio
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

import openai_bls
from openai_bls.api.common import lenient_json
from openai_bls.commands.building import command
from openai_bls.engines import adapters
from openai_bls.output import harmony
from openai_bls.output.markers import Markers
from openai_bls.output.stop_strings import StopMatcher
from openai_bls.output.structured import patterns
from openai_bls.output.structured.libraries.lark_rules import Rules
from openai_bls.triton_models.preprocessing.borders import border_pattern
from tests.unit.api.http_support import application
from tests.unit.attack_texts import LENGTHS, Attack, attacks
from tests.unit.core_support import Bench

ROOT = Path(openai_bls.__file__).parents[1]
PACKAGES = [ROOT / "openai_bls", *sorted(ROOT.glob("engines/*/openai_bls_*"))]
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


@cache
def sources() -> list[tuple[str, ast.Module]]:
    """Modules of the package and of the engines that are about expressions."""
    texts = [
        (path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted(package.rglob("*.py"))
    ]
    return [(path, ast.parse(text)) for path, text in texts if re.search(r"\b(?:re|regex)\b", text)]


def calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str, str | bytes | None]]:
    """Calls of functions of `re` that take a pattern: which, and the pattern; None for one made while it runs."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if ast.unparse(node.func.value) != "re" or node.func.attr not in FUNCTIONS:
            continue
        try:
            yield node, node.func.attr, ast.literal_eval(node.args[0])
        except (ValueError, IndexError):
            yield node, node.func.attr, None


def expressions() -> Iterator[Expression]:
    """All expressions that are written out in the sources."""
    for path, tree in sources():
        used = methods(tree)
        for node, function, pattern in calls(tree):
            if pattern is None:
                continue
            given = [*node.args[1:], *(keyword.value for keyword in node.keywords if keyword.arg == "flags")]
            names = {part.attr for arg in given for part in ast.walk(arg) if isinstance(part, ast.Attribute)}
            flags = sum(
                getattr(re, name) for name in sorted(names) if isinstance(getattr(re, name, None), re.RegexFlag)
            )
            is_bytes = isinstance(pattern, bytes)
            text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
            own = frozenset({function})
            where = f"{path}:{node.lineno}"
            yield Expression(where, text, is_bytes, used.get(node, own) if function == "compile" else own, flags)


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


def slow(expression: Expression, lengths: Sequence[int] = LENGTHS) -> Attack | None:
    """The first attack that takes too long."""
    pattern = expression.pattern.encode("latin-1") if expression.is_bytes else expression.pattern
    compiled = re.compile(pattern, expression.flags)
    begins = expression.functions <= {"match", "fullmatch"}
    find = (
        compiled.search if not begins else compiled.fullmatch if "fullmatch" in expression.functions else compiled.match
    )
    for attack in attacks(expression.pattern, expression.flags):
        for length in lengths:
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


@pytest.mark.parametrize("expression", list(expressions()), ids=lambda one: one.where)
def test_time_grows_with_the_text(expression: Expression) -> None:
    if expression.pattern in OF_SHORT_TEXT:
        return
    assert slow(expression) is None


LITERALS = st.lists(
    st.text(st.sampled_from("ab(+)*|[]^-\\.$?{1,}"), min_size=1, max_size=8)
    | st.sampled_from([r"(a+)+$", "(a|a)*b", ".*a.*b", "[a-", "a-\\"]),
    min_size=1,
    max_size=4,
)
"""Texts of others: markers, stop strings, special tokens, names of options, keys of files."""
NOTHING = re.compile("")
Made = Callable[[list[str]], "re.Pattern[Any]"]


def of_application(_: list[str]) -> re.Pattern[Any]:
    async def main() -> re.Pattern[Any]:
        return application(Bench()).state.unobserved  # type: ignore[no-any-return]

    return asyncio.run(main())


def of_options(texts: list[str]) -> re.Pattern[Any]:
    names = [f"--{text}" for text in texts]
    parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
    parser.add_argument(*names, dest="x")
    with patch.object(command, "re", wraps=re) as watched:
        command.as_typed("text", parser, names)
    return re.compile(watched.split.call_args.args[0]) if watched.split.called else NOTHING


def of_markers(texts: list[str]) -> re.Pattern[Any]:
    return bound(Markers(*apart(texts)).find)


def apart(texts: list[str]) -> list[str]:
    """Markers of these texts, without those that are a part of another."""
    markers = dict.fromkeys("<" + text for text in texts)
    return [one for one in markers if not any(one in other for other in markers if other != one)]


def of_rules(texts: list[str]) -> re.Pattern[Any]:
    found = Rules(dict.fromkeys(texts, 1))._marker
    assert found is not None
    return found


def of_borders(texts: list[str]) -> re.Pattern[Any]:
    added = [AddedToken(text, normalized=False) for text in texts]
    return border_pattern(added, "".join(texts)) or NOTHING


def of_paths(texts: list[str]) -> re.Pattern[Any]:
    """Keys that a file names are expressions; those that may take long are refused."""
    try:
        return re.compile(adapters._of_paths("".join(texts)))
    except (TypeError, re.error):
        return NOTHING


def bound(method: Any) -> re.Pattern[Any]:
    """The expression whose method it is."""
    found: re.Pattern[Any] = method.__self__
    return found


MADE: dict[str, Made] = {
    "openai_bls/api/app.py": of_application,
    "openai_bls/api/common/lenient_json.py": lambda _: lenient_json._HALF_PAIR,
    "openai_bls/api/common/lenient_json.py#2": lambda _: lenient_json._BAD_ESCAPE,
    "openai_bls/commands/building/command.py": of_options,
    "openai_bls/engines/adapters.py": of_paths,
    "openai_bls/output/harmony.py": lambda _: harmony._CHANNEL,
    "openai_bls/output/harmony.py#2": lambda _: harmony._TO_NAME,
    "openai_bls/output/markers.py": of_markers,
    "openai_bls/output/markers.py#2": lambda texts: bound(Markers(*apart(texts)).may_begin),
    "openai_bls/output/stop_strings.py": lambda texts: bound(StopMatcher(tuple(texts), False)._automaton.begin),
    "openai_bls/output/structured/libraries/lark_rules.py": of_rules,
    "openai_bls/output/structured/patterns.py": lambda _: patterns._COUNT,
    "openai_bls/triton_models/preprocessing/borders.py": of_borders,
}
"""Module in which an expression is made while it runs, `#2` for its second one → the expression of some texts."""


def test_every_expression_that_is_made_is_among_those_tried() -> None:
    """A new one fails here: give `MADE` what makes it."""
    found: list[str] = []
    for path, tree in sources():
        count = sum(pattern is None for _, _, pattern in calls(tree))
        found += [path if number == 1 else f"{path}#{number}" for number in range(1, count + 1)]
    assert found == list(MADE)


def test_expressions_are_made_by_re_alone() -> None:
    """Under its name, and by a call that is seen: what is called otherwise would not be found."""
    hidden = []
    for path, tree in sources():
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in ("re", "regex"):
                hidden.append(path)
            if isinstance(node, ast.Import):
                hidden += [path for one in node.names if one.name == "regex" or (one.name == "re" and one.asname)]
            if isinstance(node, ast.Attribute) and ast.unparse(node).removeprefix("re.") in FUNCTIONS:
                hidden += [path] if id(node) not in called else []
    assert hidden == []


@pytest.mark.parametrize("where", MADE)
@settings(max_examples=4, deadline=None, phases=[Phase.explicit, Phase.generate])
@example([r"(a+)+$", "(a|a)*b", ".*a.*b"])
@example(["^-", "]a"])
@given(LITERALS)
def test_time_of_what_is_made_grows_with_the_text(where: str, texts: list[str]) -> None:
    made = MADE[where](texts)
    is_bytes = isinstance(made.pattern, bytes)
    text = made.pattern.decode("latin-1") if is_bytes else made.pattern
    # Paths, which are matched as a whole, are not longer.
    of_path = where == "openai_bls/engines/adapters.py"
    lengths = [length for length in LENGTHS if not of_path or length <= adapters._LONGEST_NAME]
    functions = frozenset({"fullmatch" if of_path else "search"})
    assert slow(Expression(where, text, is_bytes, functions, made.flags & ~re.UNICODE), lengths) is None


def test_texts_of_others_are_found_as_they_are() -> None:
    texts = [r"(a+)+$", "a|b", "[a-", "^", "]", "\\"]
    for make in (of_markers, of_rules, of_borders, of_options):
        for text in texts:
            found = make([text]).search(f"x <{text} --{text}")
            assert found is not None, (make, text)
            assert found[0].endswith(text), (make, text)
    for text in "^]-\\[":
        begin = StopMatcher((text,), False)._automaton.begin
        assert begin(f"x{text}") is not None
        assert begin("xyz,./0") is None


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(?:a|aa)+b", r"\s+$", r"a.*b.*c", r"(\d+\.?)+x", r"[a-z]+\d"])
def test_what_is_slow_is_found(pattern: str) -> None:
    assert slow(Expression("", pattern, False, frozenset({"search"}), 0)) is not None
