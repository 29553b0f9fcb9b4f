"""What others may rely on: the names, and how cheap and quiet an import is."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import openai_bls

ROOT = Path(__file__).parents[3]
# Needs a module that exists only inside Triton.
INSIDE_TRITON = {"openai_bls.triton_models.pb_utils"}
MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(openai_bls.__path__, "openai_bls.")
    if name not in INSIDE_TRITON and not name.endswith("__main__")
]


def test_the_version_is_that_of_every_distribution() -> None:
    """Each reads it from the package of the server when it is built."""
    for path in (ROOT / "pyproject.toml", *ROOT.glob("engines/*/pyproject.toml")):
        text = path.read_text(encoding="utf-8")
        (place,) = re.findall(r"^\[tool\.hatch\.version\]\npath = \"(.*)\"$", text, re.MULTILINE)
        assert (path.parent / place).resolve() == Path(openai_bls.__file__).resolve()
        assert re.search(r"^dynamic = \[\"version\"\]$", text, re.MULTILINE)
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", openai_bls.__version__)


@pytest.mark.parametrize("name", MODULES)
def test_every_public_class_and_function_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    for public, value in vars(module).items():
        if not public.startswith("_") and getattr(value, "__module__", None) == name and callable(value):
            assert value.__doc__, public


@pytest.mark.parametrize("path", sorted((ROOT / "model_repository").glob("*/1/model.py")), ids=lambda p: p.parts[-3])
def test_models_are_thin(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80
    (model,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    assert model.name == "TritonPythonModel"
    assert "print(" not in text
