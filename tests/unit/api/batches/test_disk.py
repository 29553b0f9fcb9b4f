"""Turns of the API keys at the folder of files and batches."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from openai_bls.api.batches.folder import Folder
from openai_bls.core.keys.turns import FairExecutor
from tests.unit.api.batches.support import jsonl, request, served
from tests.unit.core_support import WAIT_S, until

SLOW = 8
"""Requests of one key that wait for the disk: more than there are threads."""


@pytest.mark.parametrize("slow", ["files", "add_file"])
async def test_slow_files_of_one_key_let_another_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    (tmp_path / "keys").write_text("a: a\nb: b\n", encoding="utf-8")
    go_on, asked = threading.Event(), threading.Event()
    own = getattr(Folder, slow)

    def stuck(folder: Folder, *arguments: Any) -> Any:
        if threading.current_thread() in held:
            asked.set()
            assert go_on.wait(WAIT_S)
        return own(folder, *arguments)

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
    monkeypatch.setattr(Folder, slow, stuck)
    async with served(tmp_path / "folder", api_keys_file=str(tmp_path / "keys")) as place:
        own_key = {"authorization": "Bearer a"}
        if slow == "files":
            sent = [place.client.get("/v1/files", headers=own_key) for _ in range(SLOW)]
        else:
            form: dict[str, Any] = {"files": {"file": ("in.jsonl", jsonl(request("r")))}, "data": {"purpose": "batch"}}
            sent = [place.client.post("/v1/files", headers=own_key, **form) for _ in range(4)]
        waiting = [asyncio.ensure_future(each) for each in sent]
        await until(asked.is_set)
        place.use_key("b")
        uploaded = (await place.upload(jsonl(request("r")))).json()["id"]
        assert [file["id"] for file in (await place.client.get("/v1/files")).json()["data"]] == [uploaded]
        assert not any(each.done() for each in waiting)
        go_on.set()
        assert {reply.status_code for reply in await asyncio.gather(*waiting)} == {200}
