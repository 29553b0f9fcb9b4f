"""A siege says which attack did what, from the first look to the last."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from openai_bls.launcher.tritonserver.ports import Ports
from tests.torture.attacks import catalog, siege
from tests.torture.attacks.alice import Alice
from tests.torture.attacks.canned import Answer, answered, refused, server
from tests.torture.attacks.siege import Siege
from tests.torture.record import Record
from tests.torture.report import page
from tests.torture.run import Options, Run
from tests.torture.server import Server


class Besieged(Server):
    """A server of canned answers in this process, to which an attack may do things."""

    def __init__(self, ports: Ports, folder: Path) -> None:
        super().__init__(folder, ports, folder)
        self.pid = 1
        self.left: dict[str, float] = {}

    def stubs(self) -> dict[str, list[int]]:
        return {"openai_bls": [os.getpid()], "preprocessing": [self.pid]}

    def family(self) -> dict[int, str]:
        return {}

    def busy(self) -> dict[str, float]:
        return self.left

    def running(self) -> bool:
        return True

    def console(self) -> str:
        return ""

    def inside(self, path: Path) -> Path:
        return path


@contextmanager
def in_a_thread() -> Iterator[Any]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def besieged(
    monkeypatch: pytest.MonkeyPatch, folder: Path, attack: Callable[[Besieged, list[Answer]], None]
) -> tuple[Besieged, Record]:
    """What an attack on a server that answers well at first leaves in the record."""
    answers: list[Answer] = [answered]

    def planted(alice: Alice) -> None:
        alice.note("planted")
        attack(target, answers)

    def latest(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        return answers[-1](path, body)

    monkeypatch.setattr(siege, "_attackers", in_a_thread)
    monkeypatch.setattr(siege, "_CALIBRATION_SECONDS", 0.0)
    monkeypatch.setattr(siege, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(catalog, "ATTACKS", {"planted": planted})
    record = Record(folder / "findings")
    with server(latest) as ports:
        target = Besieged(ports, folder)
        Siege(target, record, "7").run("", 60.0, lambda: False)
    return target, record


def nothing(target: Besieged, answers: list[Answer]) -> None:
    pass


def refuses(target: Besieged, answers: list[Answer]) -> None:
    answers.append(refused)


def forgets(target: Besieged, answers: list[Answer]) -> None:
    def emptied(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        return (404, b"{}") if "/files/" in path else answered(path, body)

    answers.append(emptied)


def restarts(target: Besieged, answers: list[Answer]) -> None:
    target.pid += 1


def leaves_work(target: Besieged, answers: list[Answer]) -> None:
    target.left = {"openai_bls_engine_sequences_running": 1.0}


@pytest.mark.parametrize(
    ("attack", "head"),
    [
        (refuses, "planted: bob's stored things: 503 overloaded"),
        (forgets, "planted: bob's stored things: 404"),
        (restarts, "planted: preprocessing was started again"),
        (leaves_work, "planted: goes on after its end: openai_bls_engine_sequences_running"),
    ],
)
def test_what_an_attack_does_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, attack: Callable[[Besieged, list[Answer]], None], head: str
) -> None:
    _, record = besieged(monkeypatch, tmp_path, attack)
    assert head in record.findings


def test_an_attack_that_does_nothing_is_in_the_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target, record = besieged(monkeypatch, tmp_path, nothing)
    assert record.findings == []
    (fought,) = record.fought
    assert (fought.name, list(fought.outcome.sent)) == ("planted", ["planted"])
    assert {look.name for look in fought.looks} == record.quiet.keys()
    assert "| planted |" in page(Run(target, Options(), record), Options())
