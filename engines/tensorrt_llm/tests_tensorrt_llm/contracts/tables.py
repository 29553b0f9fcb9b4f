"""The recorded tables, for tests."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from tests_tensorrt_llm.contracts import page

HERE = Path(__file__).resolve().parent
VERSIONS = ("0.20", "1.0", "1.1", "1.2")
"""Of Triton's TensorRT-LLM images; 1.3 has a signature table too."""
NEWEST = VERSIONS[-1]

OfficialModel = Literal["tensorrt_llm", "preprocessing", "postprocessing", "ensemble"]


class OfficialTensor(msgspec.Struct, frozen=True):
    """An input or output in an official config.pbtxt."""

    name: str
    data_type: str
    """Without `TYPE_`; `${...}` where the template's user says it."""
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    """Empty where the config has `reshape: { shape: [ ] }`."""
    optional: bool = False
    allow_ragged_batch: bool = False


class OfficialConfig(msgspec.Struct, frozen=True):
    """What a table has of one model."""

    source: dict[str, str]
    inputs: tuple[OfficialTensor, ...]
    outputs: tuple[OfficialTensor, ...]
    parameters: tuple[str, ...]
    """Keys of the `parameters` section."""


@cache
def official(model: OfficialModel, version: str = NEWEST) -> OfficialConfig:
    """A model's official config.pbtxt in a version of TensorRT-LLM."""
    return msgspec.convert(page.official(version)[model], OfficialConfig)


def signatures(version: str) -> dict[str, Any]:
    """The signature table of a version."""
    found: dict[str, Any] = json.loads((HERE / f"tensorrt_llm-{version}.json").read_text())
    return found
