"""Claims on names: one owner has a name, and what other users bind keeps nobody off."""

from __future__ import annotations

import os
import socket

import pytest

from openai_bls.transport.ipc.claims import ClaimedError, claim
from tests.unit.transport.ipc.test_peers import as_stranger


@pytest.fixture
def name() -> str:
    return f"openai_bls/test/{os.getpid()}-{os.urandom(4).hex()}"


def test_a_name_has_one_owner(name: str) -> None:
    with claim(name, "1/2"), claim(name, "1/2"), claim(f"{name}9", "3"):
        for _ in range(3):
            with pytest.raises(ClaimedError) as caught:
                claim(name, "1")
            assert caught.value.owner == "1/2"
    claim(name, "1").close()


@pytest.mark.parametrize("listens", [True, False])
def test_what_a_stranger_binds_counts_for_nothing(name: str, listens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    strangers: list[socket.socket] = []

    def bind() -> None:
        for owner in ("stranger", "ours"):
            strangers.append(socket.socket(socket.AF_UNIX))
            strangers[-1].bind(f"\0{name}/{owner}/0123456789abcdef")
            if listens:
                strangers[-1].listen()

    as_stranger(bind, monkeypatch)
    with claim(name, "ours"):
        monkeypatch.undo()
        with pytest.raises(ClaimedError) as caught:
            claim(name, "other")
        assert caught.value.owner == "ours"
    claim(name, "other").close()
    for one in strangers:
        one.close()
