"""Turns of the API keys at the folder of files and batches."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from openai_bls.api.batches import lines
from openai_bls.api.batches.folder import Folder
from openai_bls.core.keys.turns import FairExecutor
from tests.unit.api.batches.support import BATCH, jsonl, request, served
from tests.unit.core_support import WAIT_S, until

SLOW = 8
"""Requests of one key that wait for the disk: more than there are threads."""


READERS = 45
"""Requests of one key for contents: more than there are threads of anyio's."""


@pytest.mark.parametrize(
    ("owner", "slow"), [(Folder, "files"), (Folder, "add_file"), (os, "pread"), (Folder, "unended"), (lines, "read")]
)
async def test_a_slow_disk_of_one_key_lets_another_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, slow: str
) -> None:
    (tmp_path / "keys").write_text("a: a\nb: b\n", encoding="utf-8")
    go_on, asked = threading.Event(), threading.Event()
    own = getattr(owner, slow)

    def stuck(*arguments: Any) -> Any:
        if threading.current_thread() in held:
            asked.set()
            late.append(not go_on.wait(WAIT_S))
        return own(*arguments)

    late: list[bool] = []
    held: set[threading.Thread] = set()
    do = FairExecutor._do

    def noted(executor: FairExecutor, item: Any) -> None:
        if item.key == "a":
            held.add(threading.current_thread())
        try:
            do(executor, item)
        finally:
            held.discard(threading.current_thread())

    monkeypatch.setattr(FairExecutor, "_do", noted)
    async with served(tmp_path / "folder", api_keys_file=str(tmp_path / "keys")) as place:
        own_key = {"authorization": "Bearer a"}
        place.use_key("a")
        kept = (await place.upload(jsonl(request("r")))).json()["id"]
        monkeypatch.setattr(owner, slow, stuck)
        if slow == "pread":
            sent = [place.client.get(f"/v1/files/{kept}/content", headers=own_key) for _ in range(READERS)]
        elif slow == "read":
            asked_for = {**BATCH, "input_file_id": kept}
            sent = [place.client.post("/v1/batches", headers=own_key, json=asked_for) for _ in range(SLOW)]
        elif slow == "unended":
            sent = [place.client.get("/v1/batches", headers=own_key) for _ in range(SLOW)]
        elif slow == "files":
            sent = [place.client.get("/v1/files", headers=own_key) for _ in range(SLOW)]
        else:
            form: dict[str, Any] = {"files": {"file": ("in.jsonl", jsonl(request("r")))}, "data": {"purpose": "batch"}}
            sent = [place.client.post("/v1/files", headers=own_key, **form) for _ in range(4)]
        waiting = [asyncio.ensure_future(each) for each in sent]
        await until(asked.is_set)
        place.use_key("b")
        uploaded = (await place.upload(jsonl(request("r")))).json()["id"]
        assert [file["id"] for file in (await place.client.get("/v1/files")).json()["data"]] == [uploaded]
        assert (await place.client.get(f"/v1/files/{uploaded}/content")).content == jsonl(request("r"))
        assert (await place.ended((await place.create(request("r")))["id"]))["status"] == "completed"
        assert slow == "read" or not any(each.done() for each in waiting)
        go_on.set()
        assert {reply.status_code for reply in await asyncio.gather(*waiting)} == {200}
        assert not any(late)
