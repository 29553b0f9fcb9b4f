"""What is written from the structs of settings: the tables of docs/reference/settings.md, and the names that the
Helm chart's `settings` takes. `python -m tests.unit.docs.settings_page` writes both."""

from __future__ import annotations

import json
import re
import types
import typing
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec

from openai_bls.api.openapi.field_docs import field_docs
from openai_bls.core.settings import ENV_PREFIX, EngineSettings, OpenAiBlsSettings, PreprocessingSettings
from openai_bls.engines.registry import plugins
from tests.unit.docs.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "settings.md"

ENVIRONMENT_ONLY = ("api_key",)

CHART_SCHEMA = ROOT / "deploy" / "helm" / "openai-bls" / "values.schema.json"
# The launcher, `apiKey`, `apiKeysFile` and `tls` set the first; `engine.process` sets the address.
_NOT_OF_THE_CHART = {
    *("http_host", "http_port", "api_key", "api_keys_file", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs"),
    "engine_address",
}


class Table(NamedTuple):
    """Table of the page."""

    settings: type[msgspec.Struct]
    in_config: bool
    """True for parameters of config.pbtxt, False for options of an engine."""
    prefix: str
    """Beginning of the environment variable's name."""


_CALLED = {"transformers": "embedded"}
"""Names of engines in the titles, where they are others than in their plug-ins."""
TABLES = {
    "openai_bls": Table(OpenAiBlsSettings, True, ENV_PREFIX),
    "tensorrt_llm": Table(EngineSettings, True, ENV_PREFIX),
    "preprocessing": Table(PreprocessingSettings, True, ENV_PREFIX),
} | {
    f"The {_CALLED.get(engine.name, engine.title)} engine": Table(engine.options(), False, f"{ENV_PREFIX}ENGINE_")
    for engine in plugins()
    if engine.options is not None and engine.name != "null"
}
"""By the titles of their sections; the null engine's options are for tests alone."""

_NAMES = {bool: "true or false", int: "integer", float: "number", str: "text"}


def written(page: str) -> str:
    """`page` with the tables of today's structs."""
    for title, table in TABLES.items():
        pattern = rf"(\n## {re.escape(title)}\n.*?\n\n)\|.*?\n(?=\n|$)"
        page, count = re.subn(pattern, lambda m, t=table: m[1] + _rows(t), page, count=1, flags=re.DOTALL)  # type: ignore[misc]
        assert count == 1, f"the page has no section '## {title}' with a sentence and a table"
    return page


def chart_schema(text: str) -> str:
    """The chart's schema, as `text` has it, with the names of today's settings."""
    schema = json.loads(text)
    structs = (table.settings for table in TABLES.values() if table.in_config)
    names = dict.fromkeys(name for settings in structs for name in settings.__struct_fields__)
    schema["properties"]["settings"]["propertyNames"]["enum"] = [n for n in names if n not in _NOT_OF_THE_CHART]
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def type_name(hint: Any) -> str:
    """A field's type in words: `integer from 0 to 65535`, or its values."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        meta = next((note for note in notes if isinstance(note, msgspec.Meta)), msgspec.Meta())
        return type_name(inner) + _bounds(meta)
    if get_origin(hint) is Literal:
        return ", ".join("empty" if value == "" else f"`{value}`" for value in get_args(hint))
    if get_origin(hint) in (typing.Union, types.UnionType):
        return type_name(next(one for one in get_args(hint) if one is not types.NoneType))
    return _NAMES[hint]


def _bounds(meta: msgspec.Meta) -> str:
    low = f"from {meta.ge}" if meta.ge is not None else f"above {meta.gt}" if meta.gt is not None else ""
    high = f"to {meta.le}" if meta.le is not None else f"below {meta.lt}" if meta.lt is not None else ""
    return "".join(f" {part}" for part in (low, high) if part)


def _rows(table: Table) -> str:
    hints = typing.get_type_hints(table.settings, include_extras=True)
    said = field_docs(table.settings)
    kind = "setting" if table.in_config else "option"
    lines = [f"| {kind} | variable | type | default | |", "|---|---|---|---|---|"]
    for field in msgspec.structs.fields(table.settings):
        name = field.name
        shown = "" if name in ENVIRONMENT_ONLY else f"`{name}`"
        cells = (shown, f"`{table.prefix}{name.upper()}`", type_name(hints[name]), _default(field.default), said[name])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _default(value: object) -> str:
    if value is None or value == "":
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    for path, write in ((PAGE, written), (CHART_SCHEMA, chart_schema)):
        path.write_text(write(path.read_text(encoding="utf-8")), encoding="utf-8")
