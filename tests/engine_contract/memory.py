"""Folder of an engine of 3 GiB, and the estimate of the memory that its load takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from openai_bls.core.manifest import FileRecord, Manifest, write_manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines import load_memory
from openai_bls.engines.plugin import LoadMemory

MIB = 1 << 20
GIB = 1 << 30


def write_engine(folder: Path, engine: str, stored: str = "bfloat16", **fields: Any) -> Path:
    """`folder` with the manifest of an engine, whose weights are in its list of files only, and its config.json.

    Args:
        folder: version folder.
        engine: name of the engine.
        stored: data type of the weights.
        fields: further fields of the manifest.
    """
    (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
    config = {"vocab_size": 8, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "dtype": stored}
    (folder / "checkpoint" / "config.json").write_bytes(msgspec.json.encode(config))
    files = {"model.safetensors": FileRecord(3 * GIB), "tokenizer.json": FileRecord(5 * MIB)}
    common: dict[str, Any] = {"max_model_len": 64, "max_batch_size": 4, "created": 0, "files": files}
    write_manifest(folder, Manifest(engine, "m", **common | fields))
    return folder


def estimate(
    folder: Path,
    overrides: Mapping[str, str] | None = None,
    settings: EngineSettings | None = None,
    *,
    gpu: bool = False,
) -> LoadMemory:
    """The estimate for the engine in `folder`, on a machine with a GPU or without."""
    with mock.patch.object(load_memory, "gpu_is_visible", return_value=gpu):
        return load_memory.load_memory(folder, overrides or {}, settings or EngineSettings())
