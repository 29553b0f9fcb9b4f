"""Batches of an API key that is taken out of the file of keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openai_bls.api.batches import runner
from openai_bls.core.keys import watched_files
from tests.unit.api.batches.support import requests, served
from tests.unit.core_support import until


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "CHECK_INTERVAL_S", 0.0)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "keys").write_text("alice: a\nbob: b\n")
    return {"batch_concurrency": 2, "api_keys_file": str(tmp_path / "keys"), "held": True}


def gone_for(monkeypatch: pytest.MonkeyPatch, removed_s: float) -> None:
    monkeypatch.setattr(runner, "PACE", runner.PACE._replace(removed_s=removed_s))


async def test_a_batch_of_a_removed_key_fails_with_what_it_has(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone_for(monkeypatch, 0.0)
    async with served(tmp_path / "b", **settings) as place:
        place.use_key("a")
        batch_id = (await place.create(*requests("a", 10)))["id"]
        await until(lambda: len(place.in_flight) == 2)
        place.answer()
        await until(lambda: len(place.sent) == 3)
        (tmp_path / "keys").write_text("bob: b\n")
        await until(lambda: place.record(batch_id).status == "failed" and place.is_free(batch_id))
        assert len(place.sent) == 3
        assert len(place.bench.engine.cancelled) == 2
        # Whoever has the key again finds what became of it.
        (tmp_path / "keys").write_text("alice: a\nbob: b\n")
        failed = await place.get(batch_id)
        assert [(one["code"], one["line"]) for one in failed["errors"]["data"]] == [("invalid_api_key", None)]
        assert failed["request_counts"] == {"total": 10, "completed": 1, "failed": 0}
        assert list(await place.results(failed["output_file_id"])) == ["a0"]
        # Another key's batches go on.
        place.held = False
        place.use_key("b")
        done = await place.ended((await place.create(*requests("b", 3)))["id"])
        assert done["status"] == "completed"


async def test_a_batch_rests_while_its_key_is_missing(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the file is rewritten, or where it comes to one server later than to another."""
    gone_for(monkeypatch, 3600.0)
    async with served(tmp_path / "b", **settings) as place:
        place.use_key("a")
        batch_id = (await place.create(*requests("a", 4)))["id"]
        await until(lambda: len(place.in_flight) == 2)
        (tmp_path / "keys").write_text("bob: b\n")
        await until(lambda: len(place.bench.engine.cancelled) == 2 and place.is_free(batch_id))
        place.use_key("b")
        other = (await place.create(*requests("b", 2)))["id"]
        await until(lambda: len(place.sent) == 4)
        assert place.sent[2:] == ["b0", "b1"]
        assert place.record(batch_id).status == "in_progress"
        (tmp_path / "keys").write_text("alice: a\nbob: b\n")
        place.answered, place.held = 2, False
        assert (await place.ended(other))["status"] == "completed"
        place.use_key("a")
        done = await place.ended(batch_id)
        assert done["request_counts"] == {"total": 4, "completed": 4, "failed": 0}
        assert sorted(await place.results(done["output_file_id"])) == ["a0", "a1", "a2", "a3"]
