"""Arguments of vLLM's `AsyncEngineArgs` from a YAML file, as `vllm serve --config` has them: names, types, refusals.

`engine_args.json` has the fields of each version from 0.24 on with their types, read from the released wheels by
tests_vllm/contracts/record.py. At a load the installed class takes its place (`installed`). A type is a row of
alternatives: `int|None`, `'auto'|'half'`, `list`, `dict` (also of vLLM's config classes), `*` for anything.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.core.manifest import EngineLoadError
from openai_bls.core.nearest import nearest
from openai_bls_vllm.arguments.engine_args_refused import refusal

OPTION = "--extra-engine-args"
_SCALARS: dict[Any, str] = {type(None): "None", bool: "bool", int: "int", float: "float", str: "str"}
_MAX_SHOWN_TYPES = 12


def check(values: Mapping[str, Any], fields: Mapping[str, str], version: str) -> dict[str, Any]:
    """Arguments with their names in underscores, each known and none of them refused.

    Args:
        values: mapping of the YAML file; names with dashes or underscores.
        fields: name → type of the fields of `AsyncEngineArgs`, from `installed` or `recorded`.
        version: version of vLLM, for messages.

    Raises:
        EngineLoadError: a name that is unknown, given twice or refused, or a value of another type; one sentence.
    """
    found: dict[str, Any] = {}
    for written, value in values.items():
        if not isinstance(written, str):
            raise EngineLoadError(f"{OPTION}: names are texts, not {written!r}")
        name = written.lstrip("-").replace("-", "_")
        if name in found:
            raise EngineLoadError(f"{OPTION} has {name} twice")
        why = refusal(name, value)
        if why is not None:
            raise EngineLoadError(f"{OPTION} may not have {written}: {why}")
        if name not in fields:
            raise EngineLoadError(_unknown(written, name, fields, version))
        if not _fits(value, fields[name]):
            raise EngineLoadError(f"{written} in {OPTION} takes {_shown(fields[name])}, not {value!r}")
        found[name] = value
    return found


def recorded(version: str) -> dict[str, str]:
    """Name → type of the fields of `AsyncEngineArgs` in a version; of the nearest recorded one where there is none."""
    wanted = _numbers(version)
    known = versions()
    chosen = max((one for one in known if one <= wanted), default=known[0])
    found = {}
    for name, history in _table().items():
        since = max((one for one in map(_numbers, history) if one <= chosen), default=None)
        kind = "" if since is None else history[".".join(map(str, since))]
        if kind:
            found[name] = kind
    return found


def named(names: Iterable[str], version: str) -> dict[str, str]:
    """Name → type for the field names that an interpreter's vLLM tells; `*` for those that are not recorded."""
    types_of = recorded(version)
    return {name: types_of.get(name, "*") for name in names}


def versions() -> list[tuple[int, int]]:
    """The recorded versions, oldest first."""
    return sorted({_numbers(one) for history in _table().values() for one in history})


def installed(engine_args: type) -> dict[str, str]:
    """Name → type of the fields of an installed `AsyncEngineArgs`."""
    try:
        hints = typing.get_type_hints(engine_args)
    except Exception:  # of a name that is imported for type checkers only; such fields are not checked
        hints = {}
    return {
        field.name: _written(hints.get(field.name, field.type))
        for field in dataclasses.fields(engine_args)
        if field.init and not field.name.startswith("_")
    }


@cache
def _table() -> dict[str, dict[str, str]]:
    """Field → version → its type from that version on; empty where the field is gone."""
    path = Path(__file__).with_name("engine_args.json")
    return msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, str]])


def _unknown(written: str, name: str, fields: Mapping[str, str], version: str) -> str:
    near = nearest(name, fields)
    if near:
        return f"vLLM {version} has no {written}, which {OPTION} gives: the nearest name is {near}"
    elsewhere = sorted(one for one in map(_numbers, _table().get(name, {})) if one)
    if elsewhere:
        return f"vLLM {version} has no {written}, which {OPTION} gives: vLLM {'.'.join(map(str, elsewhere[0]))} has it"
    return f"vLLM {version} has no {written}, which {OPTION} gives: leave it out"


def _fits(value: Any, kind: str) -> bool:
    return any(_is(value, one) for one in _alternatives(kind))


def _is(value: Any, kind: str) -> bool:  # noqa: PLR0911
    match kind:
        case "*":
            return True
        case "None":
            return value is None
        case "bool":
            return isinstance(value, bool)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "str":
            return isinstance(value, str)
        case "list":
            return isinstance(value, list)
        case "dict":
            return isinstance(value, dict)
    return repr(value) == kind


def _shown(kind: str) -> str:
    shown = list(_alternatives(kind))
    more = f" and {len(shown) - _MAX_SHOWN_TYPES} more" if len(shown) > _MAX_SHOWN_TYPES else ""
    return " or ".join(shown[:_MAX_SHOWN_TYPES]).replace("None", "null") + more


def _alternatives(kind: str) -> list[str]:
    return kind.split("|")


def _written(hint: Any) -> str:
    """The row of alternatives of a type."""
    found = dict.fromkeys(_parts(hint))
    # A Python object that stands beside others cannot come from a file.
    if set(found) - {"*", "None"}:
        found.pop("*", None)
    return "|".join(found)


def _parts(hint: Any) -> list[str]:
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is typing.Annotated:
        return _parts(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return [part for one in arguments for part in _parts(one)]
    if origin is typing.Literal:
        return [repr(one) for one in arguments]
    kind = origin or hint
    if kind in _SCALARS:
        return [_SCALARS[kind]]
    if kind in (list, tuple, set, frozenset):
        return ["list"]
    return ["dict"] if kind is dict or (isinstance(kind, type) and dataclasses.is_dataclass(kind)) else ["*"]


def _numbers(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)
