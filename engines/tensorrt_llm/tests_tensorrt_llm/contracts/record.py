"""Recorder of an installed TensorRT-LLM's signatures, and the check of all that is recorded of it.

::

    python record.py            # the table of the installed version, on standard output
    python record.py --check    # one page: pass, or what differs; exit code 1 if a call may break
    python record.py --check FILE --models DIR --no-run

Runs in any NGC image with TensorRT-LLM. The names that are looked for are those of the recorded tables: what openai_bls
calls. `page` has the parts of the page; the two-token run needs openai_bls, the rest nothing but TensorRT-LLM.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ENGINE = HERE.parents[1]
OPTIONS = ENGINE / "openai_bls_tensorrt_llm" / "installed" / "llm_args.json"
RECORDED = ("0.20", "1.0", "1.1", "1.2", "1.3", "1.4")
# Of a class, in the order in which they are looked for.
_LORA_MODULES = (
    "tensorrt_llm._torch.peft.lora.config",
    "tensorrt_llm.lora_helper",
    "tensorrt_llm.lora_manager",
    "tensorrt_llm.llmapi.llm_args",
)
_SAME = object()


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 1 if something that the table has differs, 2 without the package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", nargs="?", const="", metavar="FILE", help="compare with what is recorded")
    parser.add_argument("--models", type=Path, metavar="DIR", help="official model repository (default: the image's)")
    parser.add_argument("--no-run", action="store_true", help="generate no tokens")
    parsed = parser.parse_args(arguments)
    try:
        version = str(importlib.import_module("tensorrt_llm").__version__)
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"{'--check' if parsed.check is not None else 'record.py'}: {error.name} is not installed in this Python; "
            "run it in an image with TensorRT-LLM, such as nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3\n"
        )
        return 2
    base = _load(Path(parsed.check) if parsed.check else nearest(version))
    found = record(base, version)
    if parsed.check is None:
        sys.stdout.write(to_json(found))
        return 0
    # As a script this is not in a package.
    sys.path[:0] = [str(folder) for folder in (ENGINE, ENGINE.parents[1]) if str(folder) not in sys.path]
    from tests_tensorrt_llm.contracts import page

    tables = json.loads(OPTIONS.read_text())
    options = tables.get(".".join(version.split(".")[:2]), {}).get("classes", {})
    parts = [
        page.Part("signatures", f"table of {base['version']}", lambda: compare(base, found)),
        page.Part("options", f"{len(options)} classes", lambda: page.options(options)),
        page.Part(
            "config.pbtxt",
            f"table of {base['version']}",
            lambda: page.configs(base["version"], parsed.models or page.TEMPLATES),
        ),
    ]
    if not parsed.no_run:
        parts.append(page.Part("two tokens", "demo/checkpoint, as transformers has them", page.two_tokens))
    sys.stdout.write(f"TensorRT-LLM {version} against what is recorded of {base['version']}\n\n")
    return 0 if page.write(parts, sys.stdout.write) else 1


def nearest(version: str) -> Path:
    """The recorded table for a version: its own, else the newest before it."""
    wanted = _numbers(version)
    if wanted == (1, 3) and int((re.match(r"1\.3\.0rc(\d+)", version) or [0, 21])[1]) < 21:
        # The last candidates with engines; the table of 1.3 is of those without.
        wanted = (1, 2)
    before = [known for known in RECORDED if _numbers(known) <= wanted] or [RECORDED[0]]
    return HERE / f"tensorrt_llm-{before[-1]}.json"


def record(base: dict[str, Any], version: str) -> dict[str, Any]:
    """The table of the installed package, with the names of `base`."""
    llm = {flow: _llm(base, flow) for flow in ("tensorrt", "pytorch")}
    some = next(_import(place) for place in llm.values() if place is not None)
    return {
        "version": ".".join(version.split(".")[:2]),
        "releases": [version],
        "recorded_from": f"the installed tensorrt_llm {version}, by tests_tensorrt_llm/contracts/record.py",
        "llm": llm,
        "functions": {name: _function(some, llm, name, entry) for name, entry in base["functions"].items()},
        "attributes": {name: _attributes(entry) for name, entry in base["attributes"].items()},
        "mappings": {
            name: {"module": entry["module"]}
            for name, entry in base["mappings"].items()
            if _import({"module": entry["module"], "class": name}) is not None
        },
        "classes": {name: _class(name, entry) for name, entry in base["classes"].items()},
    }


def compare(base: dict[str, Any], found: dict[str, Any]) -> Iterator[tuple[bool, str]]:
    """What differs: whether it may break a call, and what it is."""
    for flow, place in base["llm"].items():
        if flow != "source" and found["llm"].get(flow) is None:
            yield True, f"LLM ({flow}) is not in {place['module']}"
    for name, entry in base["functions"].items():
        other = found["functions"][name]
        if other is None:
            yield True, f"{name} is missing"
            continue
        yield from _fields(name, entry["parameters"], other["parameters"])
    for name, entry in base["attributes"].items():
        for missing in sorted(set(entry["names"]) - set(found["attributes"][name]["names"])):
            yield True, f"{name}.{missing} is missing"
    for missing in sorted(set(base["mappings"]) - set(found["mappings"])):
        yield True, f"{missing} is missing (expected in {base['mappings'][missing]['module']})"
    for name, entry in base["classes"].items():
        yield from _compare_class(name, entry, found["classes"][name])


def _compare_class(name: str, entry: dict[str, Any], other: dict[str, Any] | None) -> Iterator[tuple[bool, str]]:
    if other is None:
        yield True, f"{name} is missing (expected in {entry['module']})"
        return
    for key in ("kind", "refuses_unknown"):
        if entry.get(key) != other.get(key):
            # Both ways of construction work for every kind; a class that passes over unknown fields is checked for.
            yield False, f"{name}: {key} is {other.get(key)!r}, recorded {entry.get(key)!r}"
    if entry["module"] != other["module"]:
        yield False, f"{name} is in {other['module']}, recorded {entry['module']}"
    for missing in sorted(set(entry.get("members", ())) - set(other.get("members", ()))):
        yield True, f"{name}.{missing} is missing"
    for new in sorted(set(other.get("members", ())) - set(entry.get("members", ()))):
        yield False, f"{name}.{new} is new"
    for missing in sorted(set(entry.get("private", ())) - set(other.get("private", ()))):
        yield True, f"{name}.{missing} (private) is missing"
    yield from _fields(name, entry.get("fields", {}), other.get("fields", {}))


def _fields(owner: str, ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[tuple[bool, str]]:
    for name, field in ours.items():
        found = theirs.get(name)
        if found is None:
            yield True, f"{owner}.{name} is missing"
            continue
        for key in ("required", "default", "factory"):
            if field.get(key, _SAME) != found.get(key, _SAME):
                told = [json.dumps({k: v for k, v in one.items() if k != "values"}) for one in (found, field)]
                yield True, f"{owner}.{name} is {told[0]}, recorded {told[1]}"
                break
    for name, found in theirs.items():
        if name not in ours:
            yield found.get("required", False), f"{owner}.{name} is new"


def _llm(base: dict[str, Any], flow: str) -> dict[str, str] | None:
    places = [base["llm"][flow]] if flow in base["llm"] else []
    if flow == "pytorch":
        places.append({"module": "tensorrt_llm", "class": "LLM"})
    return next((place for place in places if _import(place) is not None), None)


def _import(place: dict[str, str]) -> Any:
    try:
        return getattr(importlib.import_module(place["module"]), place["class"])
    except (ImportError, AttributeError):
        return None


def _function(some: Any, llm: dict[str, Any], name: str, entry: dict[str, Any]) -> dict[str, Any] | None:
    place = llm["tensorrt"] if entry.get("flows") == ["tensorrt"] else None
    owner = _import(place) if place else some
    function = getattr(owner, name.removeprefix("LLM."), None)
    if function is None:
        return None
    parameters = {
        parameter.name: {"required": True} if parameter.default is parameter.empty else _default(parameter.default)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name != "self" and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    return {"parameters": parameters}


def _attributes(entry: dict[str, Any]) -> dict[str, Any]:
    owner = _import({"module": entry["module"], "class": "RequestOutput"})
    names = [name for name in entry["names"] if hasattr(owner, name)]
    # Set in the constructors of its bases.
    source = "" if owner is None else "".join(_source(base) for base in owner.__mro__)
    names += [name for name in entry["names"] if name not in names and f"self.{name}" in source]
    return {"module": entry["module"], "names": sorted(names)}


def _source(found: type) -> str:
    try:
        return inspect.getsource(found)
    except (OSError, TypeError):
        return ""


def _class(name: str, entry: dict[str, Any]) -> dict[str, Any] | None:
    modules = [entry["module"], *(_LORA_MODULES if name == "LoraConfig" else ()), "tensorrt_llm.llmapi"]
    for module in modules:
        found = _import({"module": module, "class": name})
        if found is not None:
            return _describe(module, found, entry)
    return None


def _describe(module: str, found: Any, entry: dict[str, Any]) -> dict[str, Any]:
    if isinstance(found, type) and issubclass(found, enum.Enum):
        return {"module": module, "kind": "enum", "members": [member.name for member in found]}
    if hasattr(found, "__members__"):  # an enumeration of the C++ bindings
        return {"module": module, "kind": "enum", "members": list(found.__members__)}
    described: dict[str, Any] = {"module": module}
    named: set[str] = set()
    if hasattr(found, "model_fields"):
        described |= {"kind": "pydantic", "refuses_unknown": found.model_config.get("extra") == "forbid"}
        described["fields"] = {key: _pydantic_field(field) for key, field in found.model_fields.items()}
    elif dataclasses.is_dataclass(found):
        items = dataclasses.fields(found)
        plain = [item for item in items if item.init and not item.name.startswith("_")]
        if not plain:
            # Storage behind properties.
            items = tuple(item for item in items if isinstance(getattr(found, item.name.lstrip("_"), None), property))
            described |= {"kind": "properties", "refuses_unknown": True}
            described["fields"] = {item.name.lstrip("_"): _dataclass_field(item) for item in items}
        else:
            described |= {"kind": "dataclass", "refuses_unknown": True}
            described["fields"] = {item.name: _dataclass_field(item) for item in plain}
        named = {item.name for item in items}
    else:
        raise TypeError(f"{found} is neither a pydantic model nor a dataclass nor an enumeration")
    private = [key for key in entry.get("private", ()) if hasattr(found, key) or key in named]
    return {**described, **({"private": private} if private else {})}


def _pydantic_field(field: Any) -> dict[str, Any]:
    if field.is_required():
        return {"required": True}
    if field.default_factory is not None:
        return _factory(field.default_factory)
    return _default(field.default)


def _dataclass_field(item: dataclasses.Field[Any]) -> dict[str, Any]:
    if item.default is not dataclasses.MISSING:
        return _default(item.default)
    if item.default_factory is not dataclasses.MISSING:
        return _factory(item.default_factory)
    return {"required": True}


def _factory(factory: Any) -> dict[str, Any]:
    if factory is dict and factory() == {}:
        return {"factory": "dict"}
    return {"factory": getattr(factory, "__name__", str(factory))}


def _default(value: Any) -> dict[str, Any]:
    if isinstance(value, enum.Enum):
        return {"default": value.name, "enum": type(value).__name__}
    if value is None or isinstance(value, (bool, int, float, str, list, dict)):
        return {"default": value}
    # Of the C++ bindings, whose names end with what they are.
    return {"default": str(value).rpartition(".")[2], "enum": type(value).__name__}


def to_json(table: Any, depth: int = 0) -> str:
    """JSON with one field a line, so that a table can be read and its changes too."""
    text = _lines(table, depth)
    return text + "\n"


def _lines(value: Any, depth: int) -> str:
    flat = json.dumps(value, ensure_ascii=False)
    nested = isinstance(value, dict) and any(isinstance(item, (dict, list)) and item for item in value.values())
    listed = isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value)
    pad, end = " " * (depth + 1), " " * depth
    if isinstance(value, dict) and (nested or (len(flat) > 120 and value)):
        items = [f"{pad}{json.dumps(key)}: {_lines(item, depth + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{end}}}" if depth < 4 or len(flat) > 160 else flat
    if listed:
        return "[\n" + ",\n".join(f"{pad}{_lines(item, depth + 1)}" for item in value) + f"\n{end}]"
    return flat


def _load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


if __name__ == "__main__":
    sys.exit(main())
