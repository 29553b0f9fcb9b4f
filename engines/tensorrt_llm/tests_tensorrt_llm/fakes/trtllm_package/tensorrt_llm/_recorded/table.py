"""The classes that hold values, made from the recorded signature table of the version that is played.

So the fake takes what the table says and refuses the rest, and a mistake in the table is a mistake in both: what holds
them to the truth is `contracts/record.py --check` on a machine with the real package.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from functools import cache
from pathlib import Path
from typing import Any

from tensorrt_llm import _settings

_CONTRACTS = Path(__file__).resolve().parents[4] / "contracts"
_NEWEST = "1.4"
_LAST_WITH_ENGINES = "1.2"


@cache
def table() -> dict[str, Any]:
    """Of the version played; later ones than are recorded get the newest, and 1.3 with engines that of 1.2."""
    release = _settings.release()
    path = _CONTRACTS / f"tensorrt_llm-{release[0]}.{release[1]}.json"
    if release >= (1, 3) and _settings.has_tensorrt():
        path = _CONTRACTS / f"tensorrt_llm-{_LAST_WITH_ENGINES}.json"
    elif release > (1, 3) and not path.is_file():
        path = _CONTRACTS / f"tensorrt_llm-{_NEWEST}.json"
    elif not path.is_file():
        path = _CONTRACTS / "tensorrt_llm-0.20.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@cache
def made(name: str) -> Any:
    """The class of this name in the table."""
    entry = table()["classes"][name]
    match entry["kind"]:
        case "enum":
            return enum.Enum(name, {member: member for member in entry["members"]}, type=str, module=entry["module"])
        case "dataclass":
            return _dataclass(name, entry)
        case "properties":
            return _properties(name, entry)
        case _:
            return _pydantic(name, entry)


def _default(field: dict[str, Any]) -> Any:
    if "enum" in field and field["enum"] in table()["classes"]:
        return made(field["enum"])[field["default"]]
    return field["default"]


def _factory(name: str) -> Any:
    builtin: dict[str, Any] = {"list": list, "dict": dict}
    if name in builtin:
        return builtin[name]
    if name in table()["classes"]:
        return made(name)

    def nothing() -> None:
        """What the fake has no use for."""

    nothing.__name__ = name
    return nothing


def _dataclass(name: str, entry: dict[str, Any]) -> Any:
    fields: list[Any] = []
    for field_name, field in entry["fields"].items():
        if field.get("required"):
            fields.append((field_name, Any))
        elif "factory" in field:
            fields.append((field_name, Any, dataclasses.field(default_factory=_factory(field["factory"]))))
        elif isinstance(field["default"], (dict, list)):
            fields.append((field_name, Any, dataclasses.field(default_factory=type(field["default"]))))
        else:
            fields.append((field_name, Any, dataclasses.field(default=_default(field))))
    private = [key for key in entry.get("private", ()) if key.endswith("_ids")]
    fields += [(key, Any, dataclasses.field(default=None, init=False, repr=False)) for key in private]
    return dataclasses.make_dataclass(name, fields, namespace={"__module__": entry["module"]})


def _pydantic(name: str, entry: dict[str, Any]) -> Any:
    import pydantic

    fields: dict[str, Any] = {}
    for field_name, field in entry["fields"].items():
        if field.get("required"):
            fields[field_name] = (Any, ...)
        elif "factory" in field:
            fields[field_name] = (Any, pydantic.Field(default_factory=_factory(field["factory"])))
        else:
            fields[field_name] = (Any, _default(field))
    config = pydantic.ConfigDict(
        extra="forbid" if entry["refuses_unknown"] else "ignore",
        arbitrary_types_allowed=True,
        validate_assignment=True,
        protected_namespaces=(),
    )
    values = {key: field["values"] for key, field in entry["fields"].items() if "values" in field}
    validators: dict[str, Any] = {}
    if values:

        def check(cls: type, value: Any, info: pydantic.ValidationInfo) -> Any:
            if info.field_name in values and value not in values[info.field_name]:
                raise ValueError(f"Input should be one of {values[info.field_name]}")
            return value

        validators = {"check": pydantic.field_validator("*")(classmethod(check))}
    model = pydantic.create_model(
        name, __config__=config, __module__=entry["module"], __validators__=validators or None, **fields
    )
    return model


def _properties(name: str, entry: dict[str, Any]) -> Any:
    """`PluginConfig` up to 1.1: no arguments, and assertions when it is assigned to."""

    def prop(key: str, field: dict[str, Any]) -> property:
        def getter(self: Any) -> Any:
            value = getattr(self, f"_{key}")
            return self.dtype if key != "dtype" and value == "auto" else value

        def setter(self: Any, value: Any) -> None:
            if "values" in field:
                assert any(value is one or (value == one and type(value) is type(one)) for one in field["values"]), (
                    f"Plugin {key} expects values in {field['values']}, got {value}"
                )
            setattr(self, f"_{key}", value)

        return property(getter, setter)

    fields = entry["fields"]
    storage = [
        (f"_{key}", Any, dataclasses.field(default=field["default"], init=False)) for key, field in fields.items()
    ]
    base: Any = dataclasses.make_dataclass(f"{name}Storage", storage)
    return type(
        name, (base,), {"__slots__": (), "__module__": entry["module"], **{k: prop(k, f) for k, f in fields.items()}}
    )
