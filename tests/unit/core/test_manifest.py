"""Records of engines in engine.json, and manifests of the former format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.manifest import (
    FORMAT_VERSION,
    EngineLoadError,
    EngineRecord,
    Manifest,
    load_manifest,
    write_manifest,
)

HEAD = {"engine": "b", "model_name": "m", "max_model_len": 9, "max_batch_size": 2, "created": 1, "format_version": 1}


class Record(EngineRecord, frozen=True, forbid_unknown_fields=True):
    """Record of a made-up engine."""

    version: str
    sizes: tuple[int, ...] = ()


def former(folder: Path, **fields: Any) -> Manifest:
    (folder / "engine.json").write_text(json.dumps(HEAD | fields))
    return load_manifest(folder)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = Record("1.2", (3, 4))
    manifest = Manifest("b", "m", 9, 2, 1, record=record.fields())
    write_manifest(tmp_path, manifest)
    assert load_manifest(tmp_path) == manifest
    assert Record.of(load_manifest(tmp_path)) == record


@pytest.mark.parametrize("record", [{}, {"version": 1}, {"version": "1", "more": 2}])
def test_a_record_of_something_else(record: dict[str, Any]) -> None:
    with pytest.raises(EngineLoadError, match=r"engine\.json .*\("):
        Record.of(Manifest("b", "m", 9, 2, 1, record=record))


def test_format_1_had_a_field_for_each_engine(tmp_path: Path) -> None:
    null = {"token_ids": [], "echo": False}
    found = former(tmp_path, null=null, a=None, b={"version": "1", "sizes": [5]}, c=None, quant="", self_test=None)
    assert found.record == {"version": "1", "sizes": [5]}
    assert found.format_version == FORMAT_VERSION
    # What one engine had among the manifest's own fields.
    found = former(tmp_path, engine="a", null=null, b=None, quant="fp8", self_test={"runner": "r"})
    assert found.record == {"quant": "fp8", "self_test": {"runner": "r"}}
    assert former(tmp_path, engine="null", null={"echo": True}, quant="").record == {"echo": True}


def test_format_1_with_a_field_that_nobody_knows(tmp_path: Path) -> None:
    with pytest.raises(EngineLoadError, match="later"):
        former(tmp_path, b={"version": "1"}, later=1)


def test_a_record_written_anew_is_of_this_format(tmp_path: Path) -> None:
    write_manifest(tmp_path, former(tmp_path, b={"version": "1"}))
    assert Record.of(load_manifest(tmp_path)) == Record("1")
