"""Batches that share the requests in flight with each other, and leave room for other requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

import pytest

from openai_bls.api.batches import endpoints, runner
from openai_bls.core.errors import OverloadedError, RateLimitError
from tests.unit.api.batches.support import BATCH, Place, Stats, request, requests, served
from tests.unit.core_support import until


def keys(folder: Path, *named: str) -> str:
    path = folder / "keys"
    path.write_text("\n".join(named), encoding="utf-8")
    return str(path)


async def stepped(place: Place, count: int) -> None:
    """Answer `count` requests one by one, each time with as many in flight as there were."""
    in_flight = len(place.in_flight)
    for _ in range(count):
        place.answer()
        await until(lambda: len(place.in_flight) == in_flight)


def open_locks(folder: Path) -> list[str]:
    """Locks in a folder that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        # Its file may have been closed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return [path for path in found if path.startswith(str(folder)) and path.endswith(".lock")]


@pytest.mark.parametrize(
    ("owners", "shares"),
    [
        # Without keys, and with one: each batch has its share, the last one too.
        (["", "", "", "", ""], [2, 2, 2, 2, 2]),
        (["a"] * 5, [2, 2, 2, 2, 2]),
        # A key has the same with one batch as another with four, or what its weight says.
        (["a", "a", "a", "a", "b"], [2, 1, 1, 1, 5]),
        (["a", "a", "a", "a", "heavy"], [1, 1, 0, 0, 8]),
    ],
    ids=["no keys", "one key", "two keys", "a weight"],
)
async def test_batches_share_the_requests_in_flight(tmp_path: Path, owners: list[str], shares: list[int]) -> None:
    """The last batch comes when four have all of them already."""
    settings = {"api_keys_file": keys(tmp_path, "a: a", "b: b", "heavy: heavy weight=4")} if owners[0] else {}
    async with served(tmp_path / "b", batch_concurrency=sum(shares), **settings, held=True) as place:
        created = []
        for at, owner in enumerate(owners):
            if at == 4:
                await until(lambda: len(place.in_flight) == sum(shares))
            place.use_key(owner)
            created.append(await place.create(*requests(f"{at}:", 40)))
        await place.sending(*(batch["id"] for batch in created))
        await stepped(place, 3 * sum(shares))
        in_flight = Counter(int(custom_id.partition(":")[0]) for custom_id in place.in_flight)
        assert [in_flight[4], in_flight.total()] == [shares[4], sum(shares)]
        assert sorted(in_flight[at] for at in range(4)) == sorted(shares[:4])
        place.held = False
        for at, owner in enumerate(owners):
            place.use_key(owner)
            done = await place.ended(created[at]["id"])
            assert done["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
            assert len(await place.results(done["output_file_id"])) == 40


async def test_what_passes_the_queue(tmp_path: Path) -> None:
    """A fault and a cancellation, while four batches have all requests in flight."""
    async with served(tmp_path, batch_concurrency=4, held=True) as place:
        running = [await place.create(*requests(f"{at}:", 20)) for at in range(4)]
        await until(lambda: len(place.in_flight) == 4)
        failed = await place.until((await place.create(b"{"))["id"], "failed")
        assert failed["errors"]["data"][0]["code"] == "invalid_json_line"
        waiting = await place.until((await place.create(*requests("w", 3)))["id"], "in_progress")
        assert waiting["request_counts"] == {"total": 3, "completed": 0, "failed": 0}
        await place.cancel(waiting["id"])
        cancelled = await place.until(waiting["id"], "cancelled")
        assert (cancelled["output_file_id"], cancelled["error_file_id"]) == (None, None)
        # One that runs, too, and its place is another's at once. Which one has places goes by when it was read.
        await place.sending(*(batch["id"] for batch in running))
        one = running.pop(int(place.in_flight[0].partition(":")[0]))
        await place.cancel(one["id"])
        await place.until(one["id"], "cancelled")
        await until(lambda: len(place.sent) > 4)
        assert [(await place.get(one["id"]))["status"] for one in running] == ["in_progress"] * 3
        assert place.answered == 0


@pytest.fixture
def few_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MAX_OPEN", 2)
    monkeypatch.setattr(runner, "ROUND", 4)


@pytest.mark.usefixtures("few_open")
async def test_more_batches_than_are_open(tmp_path: Path) -> None:
    """They are open by rounds, with one result for each request: the first to end is not before others' first."""
    async with served(tmp_path, batch_concurrency=2, held=True) as place:
        created = [await place.create(*requests(f"{at}:", 40)) for at in range(5)]
        for batch in created:
            await place.until(batch["id"], "in_progress")
        await until(lambda: len(place.in_flight) == 2)
        while place.answered < 198:
            await stepped(place, 1)
            # A scan that was late may have the runner lock one for a moment, only to see what has become of it.
            await until(lambda: len(open_locks(tmp_path / "batches")) <= 2)
            # To close one and to open another one takes no time for an engine.
            await place.settled()
            if len({custom_id.partition(":")[0] for custom_id in place.sent}) < 5:
                assert [batch.status for batch in place.folder.unended()] == ["in_progress"] * 5
        place.held = False
        for batch in created:
            done = await place.ended(batch["id"])
            assert done["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
            assert len(await place.results(done["output_file_id"])) == 40
        assert len(set(place.sent)) == len(place.sent) == 200


async def test_batches_that_have_no_turn_end_at_once(tmp_path: Path) -> None:
    """With the results that they had, one cancelled and one expired, while others run."""
    async with served(tmp_path, batch_concurrency=4, held=True) as place:
        created = [(await place.create(*requests(f"{at}:", 40)))["id"] for at in range(6)]
        await place.sending(*created)
        await stepped(place, 30)
    had = [len(place.folder.results(batch_id, "output").read_bytes().splitlines()) for batch_id in created]
    assert min(had) > 0
    record = place.record(created[4])
    record.expires_at = 1
    place.folder.write_batch(record)
    place.folder.cancel(created[5])
    async with served(tmp_path, batch_concurrency=4, held=True) as place:
        for batch_id, count, status in ((created[4], had[4], "expired"), (created[5], had[5], "cancelled")):
            found = await place.until(batch_id, status)
            assert len(await place.results(found["output_file_id"])) == count
            failed = 40 - count if status == "expired" else 0
            assert found["request_counts"] == {"total": 40, "completed": count, "failed": failed}
            bad = await place.results(found["error_file_id"])
            assert [line["error"]["code"] for line in bad.values()] == ["batch_expired"] * failed
        for batch_id in created[:4]:
            assert (await place.get(batch_id))["status"] == "in_progress"


async def test_a_batch_expires_before_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path, batch_concurrency=1, held=True) as place:
        running = await place.create(*requests("r", 4))
        await until(lambda: place.in_flight)
        monkeypatch.setattr(endpoints, "WINDOW_S", 1)
        found = await place.ended((await place.create(*requests("w", 2)))["id"])
        assert (found["status"], found["request_counts"]) == ("expired", {"total": 2, "completed": 0, "failed": 2})
        assert (await place.get(running["id"]))["status"] == "in_progress"


async def test_a_key_without_an_open_batch_does_not_wait_for_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "MAX_OPEN", 2)
    monkeypatch.setattr(runner, "ROUND", 1000)
    named = keys(tmp_path, "a: a", "b: b")
    async with served(tmp_path / "b", batch_concurrency=1, api_keys_file=named, held=True) as place:
        place.use_key("a")
        others = [await place.create(*requests(f"a{at}:", 100)) for at in range(3)]
        await until(lambda: place.in_flight)
        place.use_key("b")
        await place.create(*requests("b", 20))
        while "b0" not in place.sent:
            await stepped(place, 1)
        assert {place.record(batch["id"]).status for batch in others} == {"in_progress"}


async def test_a_batch_that_is_refused_gives_its_place_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key has had its tokens of a minute: it waits, and the batch of another key does not."""
    monkeypatch.setattr(runner, "PACE", runner.PACE._replace(retry_s=(1000.0, 1000.0)))
    named = keys(tmp_path, "a: a tokens_per_minute=10", "b: b")
    async with served(tmp_path / "b", batch_concurrency=2, api_keys_file=named) as place:
        place.use_key("a")
        refused = await place.create(*requests("a", 20))
        await until(lambda: place.answered)
        place.use_key("b")
        done = await place.ended((await place.create(*requests("b", 20)))["id"])
        assert done["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
        place.use_key("a")
        assert (await place.get(refused["id"]))["status"] == "in_progress"
        await place.cancel(refused["id"])
        found = await place.until(refused["id"], "cancelled")
        assert found["request_counts"]["completed"] == len(await place.results(found["output_file_id"])) > 0


async def test_a_key_that_may_have_few_requests_has_as_many_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is one too many waits, and takes no place of those for which there is room."""
    monkeypatch.setattr(runner, "PACE", runner.PACE._replace(retry_s=(1000.0, 1000.0)))
    named = keys(tmp_path, "a: a max_concurrent_requests=3")
    async with served(tmp_path / "b", batch_concurrency=8, api_keys_file=named, held=True) as place:
        place.use_key("a")
        created = [await place.create(*requests(f"{at}:", 20)) for at in range(2)]
        await until(lambda: len(place.in_flight) == 3)
        await place.sending(*(batch["id"] for batch in created))
        shared: set[str] = set()
        while place.answered < 17:
            await stepped(place, 1)
            # Not at each moment: whose turn comes first goes by when a batch was read.
            shared |= {custom_id.partition(":")[0] for custom_id in place.in_flight} if place.answered > 8 else set()
        assert shared == {"0", "1"}


async def test_a_key_has_some_batches_that_have_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_UNENDED_BATCHES", 6)
    async with served(tmp_path, batch_concurrency=100, held=True) as place:
        created = [await place.create(request("a")) for _ in range(6)]
        await until(lambda: len(place.sent) == 6)
        body = {**BATCH, "input_file_id": created[0]["input_file_id"]}
        reply = await place.client.post("/v1/batches", json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "batch_limit_exceeded")
        place.held = False
        for one in created:
            assert (await place.ended(one["id"]))["status"] == "completed"
        assert (await place.client.post("/v1/batches", json=body)).status_code == 200


async def test_others_go_first(tmp_path: Path) -> None:
    """No request of a batch begins while sequences wait; one that is turned away comes again."""
    async with served(tmp_path, batch_concurrency=2) as place:
        full = Stats(waiting=1)
        place.bench.engine.stats = full  # type: ignore[assignment]
        created = await place.create(*requests("r", 3))
        await until(lambda: full.asked > 5)
        assert not place.sent
        refusals = [OverloadedError("full"), RateLimitError("full", reason="in_progress")]
        check = place.bench.service.check_admission

        def refuse(key: str) -> None:
            if refusals:
                raise refusals.pop()
            check(key)

        place.bench.service.check_admission = refuse  # type: ignore[method-assign]
        place.bench.engine.stats = Stats(waiting=0)  # type: ignore[assignment]
        batch = await place.ended(created["id"])
        assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
        assert not refusals


async def test_a_batch_waits_with_what_waits_for_an_engine(tmp_path: Path) -> None:
    async with served(tmp_path, batch_concurrency=2) as place:
        service = place.bench.service
        admission = service.admission(next(iter(service.models)))
        place.held = True
        # More than the engine and what is sent ahead; the engine itself says that nothing waits in it.
        body = {"prompt": "x", "max_tokens": 4}
        asking = [asyncio.ensure_future(place.client.post("/v1/completions", json=body)) for _ in range(80)]
        await until(lambda: admission.waiting > 0)
        stats = Stats(waiting=0)
        place.bench.engine.stats = stats  # type: ignore[assignment]
        created = await place.create(request("r"))
        await until(lambda: stats.asked > 5)
        assert service.in_progress == len(asking)
        place.held = False
        batch = await place.ended(created["id"])
        assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}


async def test_a_refusal_that_no_waiting_helps_is_a_result(tmp_path: Path) -> None:
    named = keys(tmp_path, "k: k tokens_per_minute=10")
    async with served(tmp_path / "b", api_keys_file=named) as place:
        place.use_key("k")
        created = await place.create(request("x" * 20), request("y"))
        batch = await place.ended(created["id"])
        assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
        (result,) = (await place.results(batch["error_file_id"])).values()
        assert result["response"]["status_code"] == 429


async def test_cancelling(tmp_path: Path) -> None:
    async with served(tmp_path, batch_concurrency=1, held=True) as place:
        created = await place.create(*requests("r", 4))
        await until(lambda: len(place.sent) == 1)
        # The runner may see the mark and be done before the answer is made.
        assert (await place.cancel(created["id"]))["status"] in ("cancelling", "cancelled")
        batch = await place.ended(created["id"])
        assert (batch["status"], batch["output_file_id"]) == ("cancelled", None)
        assert place.bench.engine.cancelled == [place.bench.engine.requests[0].request_id]
        assert place.bench.service.in_progress == 0
