"""A soak counts what processes hold, by kind, and finds what grows from rest to rest."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from openai_bls.launcher.tritonserver.ports import Ports
from tests.torture.doors import HOST
from tests.torture.processes.rests import Held, Rest, growths, held, leaks, open_files, rest
from tests.torture.record import Record
from tests.torture.report import page
from tests.torture.run import Options, Run
from tests.torture.server import Server

PID = 7


def state(threads: int = 1, megabytes: float = 10.0, **files: int) -> dict[int, Held]:
    return {PID: Held("openai_bls", megabytes, threads, Counter(files))}


def hourly(*states: dict[int, Held]) -> list[Rest]:
    return [Rest(3600.0 * at, one) for at, one in enumerate(states)]


def counted(kind: str, numbers: Sequence[int]) -> list[Rest]:
    return hourly(*(state(**{kind: number}) for number in numbers))


def test_open_files_by_kind(tmp_path: Path) -> None:
    before = open_files(os.getpid())
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((HOST, 0)))
        port = listener.getsockname()[1]
        gone = stack.enter_context(socket.create_connection((HOST, port)))
        stack.enter_context(listener.accept()[0])
        stack.enter_context(socket.create_connection((HOST, port)))
        stack.enter_context(listener.accept()[0])
        for end in socket.socketpair():
            stack.enter_context(end)
        for descriptor in os.pipe():
            stack.callback(os.close, descriptor)
        stack.enter_context((tmp_path / "a-1").open("w"))
        gone.shutdown(socket.SHUT_WR)
        more = open_files(os.getpid()) - before
    file = next(kind for kind in more if kind.endswith("/a-#"))
    assert more == {
        f"tcp listening on {port}": 1,
        f"tcp established on {port}": 1,
        f"tcp established to {port}": 1,
        f"tcp close-wait on {port}": 1,
        f"tcp closing to {port}": 1,
        "unix": 2,
        "pipe": 2,
        file: 1,
    }


def test_what_a_process_holds() -> None:
    found = held({os.getpid(): "tests", 2**22 + 1: "ended"})
    assert found.keys() == {os.getpid()}
    mine = found[os.getpid()]
    assert mine.name == "tests"
    assert mine.resident_mb > 1
    assert mine.threads >= 1


def test_a_rest_keeps_the_least_of_its_looks() -> None:
    looks = [state(3, 12.0, tcp=2, pipe=4), state(2, 14.0, tcp=5), {**state(4, 13.0, tcp=3), 8: state()[PID]}]
    assert rest(60.0, looks) == Rest(60.0, state(2, 12.0, tcp=2))


def test_growth_by_the_hour() -> None:
    (growth,) = growths(hourly(state(1, 10.0, tcp=2, pipe=4), state(2, 14.0, tcp=5), state(3, 18.0, tcp=6, unix=2)))
    assert [round(slope, 6) for slope in growth.per_hour] == [4.0, 1.0, 1.0]
    assert growth.kinds == {"pipe": -4, "tcp": 4, "unix": 2}
    assert growths(hourly(state())) == []


def test_what_grows_at_every_rest_is_a_leak() -> None:
    assert leaks(counted("tcp", [0, 1, 2, 4])) == ["openai_bls holds more at every rest: tcp 1 → 4"]
    assert leaks(hourly(*(state(threads) for threads in (1, 2, 3, 4)))) == [
        "openai_bls holds more at every rest: threads 2 → 4"
    ]
    # What is opened once, what comes and goes, and too few rests to know.
    for numbers in ([0, 4, 4, 5, 5], [0, 1, 3, 2], [0, 1, 2]):
        assert leaks(counted("tcp", numbers)) == []


def test_a_report_names_the_kinds_that_grew(tmp_path: Path) -> None:
    run = Run(Server(tmp_path, Ports(1, 2, 3, 4), tmp_path), Options(), Record(tmp_path))
    assert "At rest" not in page(run, Options())
    run.rests += hourly(state(pipe=4, tcp=1), state(pipe=6, tcp=1))
    assert "| openai_bls | 10 → 10 | +0.0 | 1 → 1 | +0.0 | 5 → 7 | +2.0 | pipe +2 |" in page(run, Options())
