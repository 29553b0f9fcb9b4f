"""The names of vLLM that are used, in every recorded version; tests_vllm/contracts says where the tables come from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from openai_bls_vllm.arguments import engine_args
from openai_bls_vllm.grammars import structured_outputs
from tests_vllm.contracts import record
from tests_vllm.contracts.tables import ENGINE_ARGS, USED, VERSIONS, members, table

SOURCES = Path(engine_args.__file__).parents[1]

MISSING: dict[tuple[str, str], tuple[str, ...]] = {}
"""Name → versions that lack it; the engine finds out by itself and does without."""


def lacking(name: str, missing: list[str]) -> None:
    """Check the versions that lack a name."""
    owner, _, member = name.rpartition(".")
    assert tuple(missing) == MISSING.get((owner, member), ()), name


@pytest.mark.parametrize("path", USED)
def test_every_version_has_the_names(path: str) -> None:
    present = [version for version in VERSIONS if path in table(version)["classes"]]
    lacking(path, [version for version in VERSIONS if version not in present])
    used = USED[path]
    for name in used.fields:
        lacking(f"{path}.{name}", [one for one in present if name not in members(one, path, "fields")])
    for call in used.calls:
        name, _, given = call.partition("(")
        for version in present:
            signature = members(version, path, "methods").get(name)
            assert signature is not None, (call, version)
            parameters = set(re.findall(r"\w+", signature))
            assert set(re.findall(r"\w+", given)) <= parameters, (call, version, signature)


def test_the_sources_name_no_other_class() -> None:
    """Paths that the engine imports by name are recorded."""
    found = {
        path
        for source in SOURCES.rglob("*.py")
        for path in re.findall(r'"(vllm(?:\.\w+)*\.[A-Z]\w+)"', source.read_text(encoding="utf-8"))
    }
    assert found <= set(record.CLASSES)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_has_the_arguments(version: str) -> None:
    assert table(version)["version"].startswith(f"{version}.")
    assert set(ENGINE_ARGS) <= set(engine_args.recorded(version))


def test_the_table_of_arguments_is_made_from_the_tables() -> None:
    tables = record.recorded()
    assert tuple(tables) == VERSIONS
    assert record.ENGINE_ARGS.read_text(encoding="utf-8") == record.to_json(record.engine_args(tables))


def test_each_version_comes_back_from_the_history_of_all() -> None:
    tables = {
        "0.9": {"version": "0.9.1", "classes": {"a": {"module": "m", "bases": [], "fields": {"x": "int"}}}},
        "0.10": {"version": "0.10.0", "classes": {"a": {"module": "m", "bases": ["b"], "fields": {"y": "int"}}}},
        "0.11": {
            "version": "0.11.0",
            "classes": {"a": {"module": "m", "bases": [], "fields": {"x": "int", "y": "str"}}},
        },
    }
    changes = record.history(tables)
    assert changes["classes"]["a"]["fields"]["x"] == {"0.9": "int", "0.10": "", "0.11": "int"}
    assert {version: record.at(changes, version) for version in tables} == tables


@pytest.mark.parametrize("version", VERSIONS)
def test_the_pinned_llguidance_is_one_that_was_tried(version: str) -> None:
    pinned = re.fullmatch(r"<(\d+)\.(\d+)\.0,>=(\d+)\.(\d+)\.0", table(version)["requires"]["llguidance"])
    assert pinned is not None
    assert int(pinned[2]) == int(pinned[4]) + 1
    assert structured_outputs.why_not(f"{pinned[3]}.{pinned[4]}.0") == ""
