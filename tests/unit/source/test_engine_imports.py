"""Imports between the server and the engines.

Engines import of the server what docs/architecture/engines.md lists as its public API, and the list is no longer. What
is of the server imports no engine: the package by import-linter, its tests and the benchmarks here.
"""

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


# --- the other way round: the server's tests, the contract of engines and the benchmarks know no engine

ENGINES = {path.parent.name for path in PACKAGES}
OF_ENGINES = re.compile(rf"(openai_bls|tests|benchmarks)_({'|'.join(ENGINES)})(?=[.:]|$)")
MODULE_PATH = re.compile(rf"{OF_ENGINES.pattern}[.:]\w")
"""Text that names something in a module, as a patch or a `Lazy` part does."""
WHOLE = ROOT / "tests" / "triton"
"""Tests of whole servers: some run a real engine."""


def of_engines(path: Path) -> Iterator[str]:
    """What a file imports from an engine, its tests or its benchmarks, and the modules there that its texts name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE_PATH.match(node.value):
            names = [node.value]
        else:
            continue
        yield from (name for name in names if OF_ENGINES.match(name))


def test_the_tests_of_the_server_and_the_benchmarks_import_no_engine() -> None:
    folders = (ROOT / "tests", ROOT / "benchmarks")
    files = [path for folder in folders for path in folder.rglob("*.py") if WHOLE not in path.parents]
    found = {path.relative_to(ROOT).as_posix(): names for path in files if (names := sorted(of_engines(path)))}
    assert len(files) > 100
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "import openai_bls_vllm",
        "import openai_bls_vllm.record as r",
        "from tests_transformers.engine import adapters",
        "from benchmarks_llama_cpp import laptop",
        'patch("openai_bls_tensorrt_llm.legacy.client.GrpcEngineClient")',
        'Lazy("openai_bls_vllm:PLUGIN")',
    ],
)
def test_what_is_found(line: str, tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(f"def test_it():\n    {line}\n")
    assert list(of_engines(path))
    path.write_text('import openai_bls.engines, openai_bls_toy\nPATH = "engines/vllm/openai_bls_vllm/lora.py"\n')
    assert not list(of_engines(path))
