"""Requests in progress of an API key that is taken out of the file of keys."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from openai_bls.core.errors import AuthenticationError
from openai_bls.core.keys import watched_files
from tests.unit.core_support import Bench, FakeSink, chat, request_context, until
from tests.unit.pipeline.serving import answered, streamed


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(watched_files, "CHECK_INTERVAL_S", 0.0)
    path = tmp_path / "keys"
    path.write_text("alice: a\nbob: b\n")
    return path


async def test_what_runs_and_what_waits_ends(keys: Path) -> None:
    """A stream and a whole answer, one of them in the queue; not those of others, nor what comes without a name."""
    bench = Bench(api_keys_file=str(keys))
    sinks = {key: FakeSink(opens_at_once=True) for key in ("alice", "bob", "")}
    for key, sink in sinks.items():
        await streamed(bench.service, request_context(key=key), chat(stream=True), sink)
    whole = asyncio.ensure_future(answered(bench.service, request_context(key="alice"), chat(n=2)))
    await until(lambda: len(bench.engine.requests) == 5)
    look = bench.service.removed_keys.look
    keys.write_text("bob: b\n")
    look()
    assert bench.engine.cancelled == []
    look()
    assert len(bench.engine.cancelled) == 3
    with pytest.raises(AuthenticationError) as caught:
        await whole
    assert caught.value.code == "invalid_api_key"
    assert [[type(error) for error in sink.errors] for sink in sinks.values()] == [[AuthenticationError], [], []]
    assert sorted(record.key for record in bench.records) == ["alice", "alice"]
    assert bench.service.in_progress == 2 == len(bench.service.removed_keys.lives)
    for at in (1, 2):
        bench.engine.deliver(at, "ok", "length")
    assert not bench.service.removed_keys.lives


async def test_a_key_that_was_away_for_one_look(keys: Path) -> None:
    bench = Bench(api_keys_file=str(keys))
    await streamed(bench.service, request_context(key="alice"), chat(stream=True), FakeSink())
    for text in ("bob: b\n", "alice: a\nbob: b\n", "bob: b\n"):
        keys.write_text(text)
        bench.service.removed_keys.look()
    assert bench.engine.cancelled == []
