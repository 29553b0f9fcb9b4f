"""What others may rely on: the names, and how cheap and quiet an import is."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import openai_bls
from openai_bls.core import engine_types

ROOT = Path(__file__).parents[2]
# Needs a module that exists only inside Triton.
INSIDE_TRITON = {"openai_bls.triton_models.pb_utils"}
HEAVY = ["torch", "transformers", "tritonclient", "pytriton"]
MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(openai_bls.__path__, "openai_bls.")
    if name not in INSIDE_TRITON and not name.endswith("__main__")
]


def test_the_version_is_the_projects() -> None:
    assert f'\nversion = "{openai_bls.__version__}"\n' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", openai_bls.__version__)


@pytest.mark.parametrize(
    "name",
    [
        "openai_bls.triton_models.openai_bls.runtime",
        "openai_bls.triton_models.tensorrt_llm.frontend",
        "openai_bls.triton_models.preprocessing.model",
    ],
)
def test_what_a_model_imports_brings_no_heavy_package(name: str) -> None:
    code = f"import sys, {name}; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""
    assert result.stderr == ""


def test_only_one_module_touches_triton() -> None:
    users = []
    for path in (ROOT / "openai_bls").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if "triton_python_backend_utils" in names:
                users.append(path.name)
    assert users == ["pb_utils.py"]


@pytest.mark.parametrize("name", MODULES)
def test_every_public_class_and_function_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    for public, value in vars(module).items():
        if not public.startswith("_") and getattr(value, "__module__", None) == name and callable(value):
            assert value.__doc__, public


def test_the_wires_fields() -> None:
    """These are packed as they stand; a change of order or name needs both ends."""
    assert engine_types.TokenDelta.__struct_fields__ == (
        "request_id",
        "token_ids",
        "finish_reason",
        "stop_token_id",
        "error",
        "invalid",
        "logprobs",
        "prompt_logprobs",
        "cached_tokens",
        "embedding",
    )
    assert engine_types.Logprobs.__struct_fields__ == ("token_logprobs", "top_token_ids", "top_logprobs")
    assert engine_types.PromptResult.__struct_fields__ == ("prompt_token_ids", "bad_words", "error", "param")


@pytest.mark.parametrize("path", sorted((ROOT / "model_repository").glob("*/1/model.py")), ids=lambda p: p.parts[-3])
def test_models_are_thin(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80
    (model,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    assert model.name == "TritonPythonModel"
    assert "print(" not in text
