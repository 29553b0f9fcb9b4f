"""Recorder of vLLM's names, read from a wheel without installing it.

::

    pip download vllm==0.32.0 --no-deps --only-binary :all: --python-version 3.12 --platform manylinux_2_28_x86_64
    python record.py vllm-0.32.0-*.whl          # writes what 0.32 has to vllm.json
    python record.py --check vllm-0.32.0-*.whl  # exit code 1 if something else is recorded of it

The sources in the wheel are parsed, never run. Fields and methods are written as they stand there, on one line each,
with the versions that changed them; a type that is an alias of words or types is written out, since options are checked
by it.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TABLE = HERE / "vllm.json"
"""Tables of all recorded versions, as `history` writes them."""

CLASSES = (
    *("vllm.AsyncEngineArgs", "vllm.engine.arg_utils.EngineArgs", "vllm.SamplingParams", "vllm.PoolingParams"),
    *("vllm.sampling_params.StructuredOutputsParams", "vllm.sampling_params.RequestOutputKind"),
    *("vllm.config.VllmConfig", "vllm.config.StructuredOutputsConfig", "vllm.lora.request.LoRARequest"),
    *("vllm.outputs.RequestOutput", "vllm.outputs.CompletionOutput", "vllm.logprobs.Logprob"),
    *("vllm.v1.engine.EngineCoreRequest", "vllm.v1.engine.EngineCoreOutput", "vllm.v1.engine.EngineCoreOutputs"),
    *("vllm.v1.engine.FinishReason", "vllm.v1.engine.exceptions.EngineDeadError"),
    *("vllm.v1.engine.core_client.EngineCoreClient", "vllm.v1.engine.core_client.AsyncMPClient"),
    *("vllm.v1.engine.core_client.MPClient", "vllm.v1.engine.async_llm.AsyncLLM", "vllm.v1.executor.Executor"),
    *("vllm.v1.core.sched.scheduler.Scheduler", "vllm.v1.core.sched.async_scheduler.AsyncScheduler"),
    *("vllm.v1.engine.input_processor.InputProcessor", "vllm.usage.usage_lib.UsageContext"),
    *("vllm.v1.metrics.stats.SchedulerStats", "vllm.v1.metrics.stats.PrefillStats"),
    *("vllm.v1.metrics.loggers.StatLoggerBase", "vllm.v1.spec_decode.metrics.SpecDecodingStats"),
    *("vllm.v1.outputs.LogprobsLists", "vllm.v1.outputs.LogprobsTensors"),
    "vllm.v1.structured_output.backend_guidance.GuidanceBackend",
    "vllm.v1.structured_output.backend_guidance.GuidanceGrammar",
)
"""Classes that the engine or its tests use, by the path at which they are imported."""

ENGINE_ARGS = HERE.parents[1] / "openai_bls_vllm" / "arguments" / "engine_args.json"
"""Table of the library, made from all that are recorded."""
_ENGINE_ARGS_CLASSES = ("vllm.engine.arg_utils.EngineArgs", "vllm.AsyncEngineArgs")
_KINDS = {
    **{name: name for name in ("int", "float", "bool", "str", "list", "dict")},
    **dict.fromkeys(("set", "tuple", "List", "Sequence"), "list"),
}
_EXCLUDED = re.compile(r"_(?!_init__|bad_words|backend|validate_structured)")
_VERSION = re.compile(r"\d+\.\d+")
_MAX_DEFAULT_CHARACTERS = 60
_QUANTIZATION = "vllm/model_executor/layers/quantization/__init__.py"


class Sources:
    """Python files of a wheel, parsed when asked for."""

    def __init__(self, wheel: Path) -> None:
        self._zip = zipfile.ZipFile(wheel)
        self._names = set(self._zip.namelist())
        metadata = next(name for name in self._names if name.endswith(".dist-info/METADATA"))
        self.metadata = self._zip.read(metadata).decode()
        self.tree = cache(self._tree)
        self.aliases = dict(self._aliases())

    def _tree(self, path: str) -> ast.Module:
        return ast.parse(self._zip.read(path))

    def module(self, name: str) -> str | None:
        """Path of a module's file; None if the wheel has none."""
        stem = name.replace(".", "/")
        return next((path for path in (f"{stem}.py", f"{stem}/__init__.py") if path in self._names), None)

    def find(self, dotted: str) -> tuple[str, ast.ClassDef] | None:
        """The module that defines a class and its definition, through re-exports."""
        module, _, name = dotted.rpartition(".")
        path = self.module(module)
        if path is None:
            return None
        for node in ast.walk(self.tree(path)):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return module, node
        for node in ast.walk(self.tree(path)):
            if isinstance(node, ast.ImportFrom) and any((one.asname or one.name) == name for one in node.names):
                parts = module.split(".") if path.endswith("__init__.py") else module.split(".")[:-1]
                base = ".".join(parts[: len(parts) + 1 - node.level]) if node.level else ""
                return self.find(".".join(filter(None, (base, node.module, name))))
            # vllm/__init__.py: {"AsyncEngineArgs": ".engine.arg_utils:AsyncEngineArgs"}
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == name and isinstance(value, ast.Constant):
                        return self.find(module + str(value.value).replace(":", "."))
        return None

    def _aliases(self) -> Iterator[tuple[str, ast.expr]]:
        folders = ("vllm/config/", "vllm/engine/", _QUANTIZATION)
        for path in sorted(name for name in self._names if name.startswith(folders) and name.endswith(".py")):
            for node in self.tree(path).body:
                name, value = _assigned(node)
                if isinstance(value, ast.Subscript | ast.BinOp) and name and name[0].isupper():
                    yield name, value

    def written_out(self, node: ast.expr) -> ast.expr:
        """A type with the aliases of words and types in it written out."""
        aliases = self.aliases

        class Writer(ast.NodeTransformer):
            def visit_Name(self, name: ast.Name) -> Any:
                found = aliases.get(name.id)
                return self.visit(found) if found is not None else name

        written: ast.expr = Writer().visit(ast.parse(ast.unparse(node), mode="eval").body)
        return written


def record(wheel: Path) -> dict[str, Any]:
    """The table of a wheel."""
    sources = Sources(wheel)
    version = re.search(r"^Version: (\S+)$", sources.metadata, re.MULTILINE)
    needs = re.findall(
        r"^Requires-Dist: (llguidance|xgrammar|transformers|torch)([=<>][^;\n]*)", sources.metadata, re.MULTILINE
    )
    python = re.search(r"^Requires-Python: (.+)$", sources.metadata, re.MULTILINE)
    return {
        "version": version[1] if version else "",
        "requires": {"python": python[1] if python else "", **dict(needs)},
        "classes": {path: found for path in CLASSES if (found := _class(sources, path)) is not None},
    }


def _class(sources: Sources, dotted: str) -> dict[str, Any] | None:
    found = sources.find(dotted)
    if found is None:
        return None
    module, node = found
    fields, methods = {}, {}
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            fields[part.target.id] = _field(sources, part)
        elif isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name):
            fields[part.targets[0].id] = f"= {_short(part.value)}"
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            if any(isinstance(one, ast.Attribute) and one.attr == "setter" for one in part.decorator_list):
                continue
            methods[part.name] = _signature(part)
            fields |= {} if part.name != "__init__" else dict.fromkeys(_attributes(part), "(set in __init__)")
    return {
        "module": module,
        "bases": [ast.unparse(base) for base in node.bases],
        "fields": {name: text for name, text in fields.items() if not _EXCLUDED.match(name)},
        "methods": {name: text for name, text in methods.items() if not _EXCLUDED.match(name)},
    }


def _field(sources: Sources, part: ast.AnnAssign) -> str:
    written = ast.unparse(sources.written_out(part.annotation))
    return written if part.value is None else f"{written} = {_short(part.value)}"


def _short(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= _MAX_DEFAULT_CHARACTERS else "..."


def _signature(part: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    decorators = {one.id for one in part.decorator_list if isinstance(one, ast.Name)}
    words = sorted(decorators & {"property", "staticmethod", "classmethod"})
    words += ["async"] if isinstance(part, ast.AsyncFunctionDef) else []
    for one in [*part.args.posonlyargs, *part.args.args, *part.args.kwonlyargs]:
        one.annotation = None
    return " ".join([*words, f"({ast.unparse(part.args)})"])


def _attributes(part: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Attributes of the instance that a constructor sets."""
    targets = [
        target
        for node in ast.walk(part)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return sorted(
        {
            target.attr
            for target in targets
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
        }
    )


def history(by_version: Mapping[str, Any]) -> dict[str, Any]:
    """Every value of some tables → version → the value from that version on, empty where it is gone.

    Args:
        by_version: tables, or a value of each of them, by version, oldest first.
    """
    if any(isinstance(value, dict) for value in by_version.values()):
        names = dict.fromkeys(name for values in by_version.values() for name in values or ())
        return {
            name: history({version: (values or {}).get(name, "") for version, values in by_version.items()})
            for name in names
        }
    changes: dict[str, Any] = {}
    known: Any = ""
    for version, value in by_version.items():
        if value != known:
            changes[version] = known = value
    return changes


def at(changes: dict[str, Any], version: str) -> Any:
    """The table, or the value, of a version in what `history` has made."""
    if changes and all(map(_VERSION.fullmatch, changes)):
        return next((changes[known] for known in reversed(changes) if _numbers(known) <= _numbers(version)), "")
    found = {name: at(inner, version) for name, inner in changes.items()}
    return {name: value for name, value in found.items() if value != ""}


def engine_args(tables: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, str]]:
    """`history` of the types of the fields of `AsyncEngineArgs`, for `ENGINE_ARGS`."""
    types_of = {
        version: {
            name: alternatives(text.partition(" = ")[0])
            for path in _ENGINE_ARGS_CLASSES
            for name, text in table["classes"][path]["fields"].items()
            if not name.startswith("_")
        }
        for version, table in tables.items()
    }
    return dict(sorted(history(types_of).items()))


def alternatives(annotation: str) -> str:
    """A type as `openai_bls_vllm.arguments.engine_args` writes it."""
    node = ast.parse(annotation, mode="eval").body
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return alternatives(node.value)
    found = dict.fromkeys(_alternatives(node))
    if set(found) - {"*", "None"}:
        found.pop("*", None)
    return "|".join(found)


def _alternatives(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.BinOp(left=left, right=right):
            yield from _alternatives(left)
            yield from _alternatives(right)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple(elts=parts)):
            for part in parts:
                yield from [ast.unparse(part)] if isinstance(part, ast.Constant) else _alternatives(part)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=part):
            yield ast.unparse(part)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[first, *_])):
            yield from _alternatives(first)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=part):
            yield from (*_alternatives(part), "None")
        case ast.Subscript(value=ast.Name(id="Union"), slice=ast.Tuple(elts=parts)):
            for part in parts:
                yield from _alternatives(part)
        case ast.Subscript(value=ast.Name(id=name)) | ast.Name(id=name):
            yield _KINDS.get(name, "dict" if name.endswith(("Config", "ConfigArgs")) else "*")
        case ast.Constant(value=None):
            yield "None"
        case _:
            yield "*"


def _assigned(node: ast.stmt) -> tuple[str, ast.expr | None]:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id, node.value
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id, node.value
    return "", None


def to_json(table: dict[str, Any]) -> str:
    """JSON with a field or a method on a line."""
    return _lines(table, 0) + "\n"


def _lines(value: Any, depth: int) -> str:
    if not isinstance(value, dict) or not value or (depth and all(map(_VERSION.fullmatch, value))):
        return json.dumps(value, ensure_ascii=False)
    pad = " " * (depth + 1)
    items = [f"{pad}{json.dumps(key)}: {_lines(item, depth + 1)}" for key, item in value.items()]
    return "{\n" + ",\n".join(items) + f"\n{' ' * depth}}}"


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 1 if `--check` finds a table that is another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with what is recorded, write nothing")
    parser.add_argument("wheel", type=Path, nargs="+", help="wheels of vLLM")
    options = parser.parse_args(arguments)
    tables = recorded()
    found = {".".join(table["version"].split(".")[:2]): table for table in map(record, options.wheel)}
    if options.check:
        return int(any(tables.get(version) != table for version, table in found.items()))
    tables = dict(sorted({**tables, **found}.items(), key=lambda item: _numbers(item[0])))
    TABLE.write_text(to_json(history(tables)), encoding="utf-8")
    ENGINE_ARGS.write_text(to_json(engine_args(tables)), encoding="utf-8")
    return 0


def recorded() -> dict[str, dict[str, Any]]:
    """The recorded tables by version, oldest first."""
    changes = json.loads(TABLE.read_text(encoding="utf-8"))
    tables = {version: at(changes, version) for version in changes["version"]}
    for table in tables.values():
        table["classes"] = {path: entry for path, entry in table["classes"].items() if "module" in entry}
    return tables


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


if __name__ == "__main__":
    sys.exit(main())
