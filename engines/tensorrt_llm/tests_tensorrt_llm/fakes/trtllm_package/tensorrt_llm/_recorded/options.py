"""The classes below `TorchLlmArgs` that options go into, made from what openai_bls has recorded of them.

As with the tables of tests_tensorrt_llm/contracts, a mistake there is a mistake in both.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

from tensorrt_llm import _settings

_RECORDED = Path(__file__).resolve().parents[5] / "openai_bls_tensorrt_llm/installed/llm_args.json"
_PLAIN = {"bool": bool, "int": int, "float": float, "str": str, "file": str, "dir": str}


@cache
def classes() -> dict[str, dict[str, str]]:
    """Of the version played: name → field → type. None before 1.0."""
    tables = json.loads(_RECORDED.read_text())
    major, minor = _settings.release()
    if (major, minor) < (1, 0):
        return {}
    found: dict[str, dict[str, str]] = tables.get(f"{major}.{minor}", tables[max(tables)])["classes"]
    return found


@cache
def made(name: str) -> Any:
    """The class of this name, which validates as pydantic's models do."""
    import pydantic

    fields: dict[str, Any] = {}
    for key, kind in classes()[name].items():
        default = ... if kind.endswith("!") else None
        found = _type(kind.rstrip("?!"))
        fields[key] = (found if default is ... else Optional[found], default)  # noqa: UP045  # made at run time
    model = pydantic.create_model(
        name,
        __config__=pydantic.ConfigDict(extra="forbid", strict=False, protected_namespaces=()),
        __module__="tensorrt_llm.llmapi.llm_args",
        **fields,
    )
    return model


def _type(kind: str) -> Any:
    import pydantic

    if kind.startswith("["):
        return list[_type(kind[1:-1])]  # type: ignore[misc]
    if kind in classes():
        return made(kind)
    name, relation, bound = kind.partition(">")
    if name not in _PLAIN:
        return Literal[tuple(kind.split("|"))]
    limit = pydantic.Field(ge=0) if bound.startswith("=") else pydantic.Field(gt=0)
    return Annotated[_PLAIN[name], limit] if relation else _PLAIN[name]
