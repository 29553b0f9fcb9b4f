"""The server knows no engine by name but the null engine: it asks the plug-ins."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_bls.engines.registry import names, plugin

PACKAGE = Path(__file__).parents[3] / "openai_bls"
ENGINES = sorted(set(names()) - {"null"})
# Whose name is also that of a Triton model, as in the official repository, or of a package, or of a metric's style.
OTHER_MEANING = {
    "triton_models/repository/engines.py",
    "triton_models/tensors/models.py",
    "launcher/checks.py",
    "commands/main.py",
    "pipeline/metrics/metrics.py",
    "core/settings.py",
}


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_engine_is_imported_or_named(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not [name for name in imported(tree) if name.startswith("openai_bls_")]
    if path.relative_to(PACKAGE).as_posix() in OTHER_MEANING:
        return
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value in ENGINES]
    assert not texts, [f"line {node.lineno}: {node.value!r}" for node in texts]


@pytest.mark.parametrize("engine", names())
def test_every_part_of_a_plug_in_is_there(engine: str) -> None:
    """A wrong path would show when the part is first asked for."""
    found = plugin(engine)
    for name, part in vars(found).items():
        if hasattr(part, "path"):
            assert part() is not None, name
