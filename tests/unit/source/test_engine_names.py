"""The server knows no engine by name but the null engine: it asks the plug-ins."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_bls.engines.registry import names, plugin

PACKAGE = Path(__file__).parents[3] / "openai_bls"
ENGINES = sorted(set(names()) - {"null"})
# Packages of engines, below `openai_bls`. The options of builds and the gRPC client belong to one each.
OWN = (
    *("embedded", "engines/llama_cpp", "engines/tensorrt_llm", "engines/vllm", "transport/grpc"),
    *("builder/embedded", "builder/llama_cpp", "builder/tensorrt_llm", "builder/vllm"),
    *(f"builder/options/{name}.py" for name in ("llama_cpp", "quantizations", "tensorrt_llm", "vllm")),
    "triton_models/repository/cpp_backend.py",
)
# Whose name is also that of a Triton model, as in the official repository, or of a package, or of a metric's style.
OTHER_MEANING = {
    "triton_models/repository/engines.py",
    "triton_models/tensors/models.py",
    "launcher/checks.py",
    "commands/main.py",
    "pipeline/metrics/metrics.py",
    "core/settings.py",
    # Grammars of the libraries that engines have, by the engine's kind: until EngineInfo tells of the library.
    "output/structured/selection.py",
}


def server_files() -> list[Path]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        if not any(place == own or place.startswith(f"{own}/") for own in OWN):
            found.append(path)
    return found


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", server_files(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_engine_is_imported_or_named(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    packages = [f"openai_bls.{own.removesuffix('.py').replace('/', '.')}" for own in OWN]
    # The server's own streams of Triton's gRPC port lie beside the client.
    packages.remove("openai_bls.transport.grpc")
    packages += [f"openai_bls.transport.grpc.{name}" for name in ("client", "decoding", "description", "encoding")]
    for name in imported(tree):
        assert not any(name == own or name.startswith(f"{own}.") for own in packages), name
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
