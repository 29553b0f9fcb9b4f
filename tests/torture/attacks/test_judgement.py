"""The siege finds what it is there to find: each thing that an attack may cost the quiet key."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openai_bls.launcher.tritonserver.ports import Ports
from tests.torture.attacks.alice import Alice, Outcome, Target, no_answer_for
from tests.torture.attacks.bob import Bob, Look
from tests.torture.attacks.canned import Answer, answered, other, refused, server
from tests.torture.attacks.catalog import ATTACKS, wanted
from tests.torture.attacks.judgement import MOST_LOOP_S, Fought, quiet_costs, share_s, wrongs
from tests.torture.doors import HOST
from tests.torture.processes.cpu import Meter, busiest_thread, process_cpu_s, thread_cpu_s

QUIET = {"health": 0.1, "JSON": 0.5}
GOOD = Look("health", 1.0, 0.1, 0.2)
GREEDY_S = share_s(QUIET, "JSON") + 0.01


def fought(*looks: Look, **further: Any) -> list[str]:
    return wrongs(Fought("chunks", "7", looks=list(looks), **further), QUIET)


def test_a_fair_attack_is_no_finding() -> None:
    looks = [GOOD, replace(GOOD, loop_s=MOST_LOOP_S), replace(GOOD, name="JSON", cpu_s=share_s(QUIET, "JSON"))]
    assert fought(*looks, outcome=Outcome(told=Counter({"429": 5, "left": 2}))) == []
    # The event loop works for all during an answer that takes its time.
    assert fought(replace(GOOD, name="JSON", loop_s=3.0)) == []


@pytest.mark.parametrize(
    ("looks", "further", "head"),
    [
        ([replace(GOOD, loop_s=MOST_LOOP_S + 0.01)], {}, "holds the event loop"),
        (
            [replace(GOOD, name="JSON", cpu_s=GREEDY_S)],
            {},
            "takes more than its share from bob's JSON",
        ),
        ([replace(GOOD, wrong="503 ")], {}, "bob's health: 503 "),
        ([GOOD], {"restarted": ["preprocessing"]}, "preprocessing was started again"),
        ([GOOD], {"goes_on": "CPU time"}, "goes on after its end: CPU time"),
        ([GOOD], {"outcome": Outcome(wrong=Counter({"500": 3}))}, "is told 500"),
    ],
)
def test_what_is_unfair(looks: list[Look], further: dict[str, Any], head: str) -> None:
    assert fought(*looks, *looks, **further) == [head]


def test_what_the_quiet_key_itself_got_meanwhile_is_not_others() -> None:
    """By what such an answer takes on a quiet server, no more; what came before or after does not count."""
    waited = Look("JSON", 10.0, 0.1, GREEDY_S + 3 * QUIET["health"], ended_s=20.0)
    own = [replace(GOOD, cpu_s=1.0, ended_s=ended_s) for ended_s in (9.0, 11.0, 15.0, 19.0, 21.0)]
    assert fought(waited, *own) == ["takes more than its share from bob's JSON"]
    assert fought(replace(waited, cpu_s=waited.cpu_s - 0.02), *own) == []
    assert fought(replace(waited, cpu_s=waited.cpu_s - 0.02), *own[:3]) == ["takes more than its share from bob's JSON"]


def test_the_costs_of_a_quiet_server() -> None:
    assert quiet_costs([replace(GOOD, cpu_s=cpu_s) for cpu_s in (0.1, 0.3, 9.0)]) == {"health": 0.3}


@pytest.mark.parametrize(
    ("status", "headers", "text", "wrong"),
    [
        (200, {}, b"{}", None),
        (429, {"Retry-After": "1"}, b"{}", None),
        (504, {}, b"{}", None),
        (503, {}, b"{}", "503 without Retry-After"),
        (429, {}, b"{}", "429 without Retry-After"),
        (500, {}, b"{}", "500"),
        (400, {}, b"Traceback (most recent call last)", "a traceback"),
    ],
)
def test_what_the_attacker_is_told(status: int, headers: dict[str, str], text: bytes, wrong: str | None) -> None:
    assert no_answer_for(status, headers, text) == wrong


# --- the quiet key's own looks, at a server of canned answers ---


def bob(ports: Ports) -> Bob:
    return Bob(ports, Meter(dict, (0, 0)))


def test_bob_is_content_with_good_answers() -> None:
    with server(answered) as ports:
        client = bob(ports)
        client.store()
        with client.looking() as looks:
            pass
    assert {look.name for look in looks} == client.kinds.keys()
    assert [look.wrong for look in looks if look.wrong] == []


@pytest.mark.parametrize(
    ("answer", "name", "wrong"),
    [
        (refused, "health", "503 overloaded"),
        (refused, "image", "503 overloaded"),
        (refused, "image of a host", "503 overloaded"),
        (refused, "stored things", "503 overloaded"),
        (other, "first token", "another text"),
        (other, "JSON", "another JSON"),
        (other, "stored things", "conversations changed"),
    ],
)
def test_bob_sees_a_wrong_answer(answer: Answer, name: str, wrong: str) -> None:
    answers: list[Answer] = [answered]

    def latest(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        return answers[-1](path, body)

    with server(latest) as ports:
        client = bob(ports)
        client.store()
        answers.append(answer)
        assert client.look(name).wrong == wrong


def test_bob_sees_a_server_that_hangs_up() -> None:
    class Closed(socketserver.BaseRequestHandler):
        """Says nothing."""

    with socketserver.ThreadingTCPServer((HOST, 0), Closed) as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        port = running.server_address[1]
        assert bob(Ports(port, port, port, port)).look("health").wrong.startswith("broken: ")
        running.shutdown()


# --- CPU time ---


def work(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_cpu_time_of_a_thread_and_of_a_process() -> None:
    thread, pid = threading.get_native_id(), threading.get_native_id()
    meter = Meter(lambda: {pid: "torture"}, (pid, thread))
    loop_s, family_s = meter.loop_s(), meter.family_s()
    work(0.1)
    assert meter.loop_s() - loop_s >= 0.09
    assert meter.family_s() - family_s >= 0.07
    assert thread_cpu_s(pid, 0) == process_cpu_s(0) == 0.0


def test_what_an_ended_process_took_stays_counted(tmp_path: Path) -> None:
    family = {threading.get_native_id(): "torture"}
    meter = Meter(lambda: family, (0, 0), age_s=0.0)
    before = meter.family_s()
    family = {}
    assert meter.family_s() >= before > 0


def test_the_thread_that_works_is_found() -> None:
    begin, found = threading.Event(), threading.Event()

    def busy() -> None:
        begin.wait()
        while not found.is_set():
            pass

    thread = threading.Thread(target=busy)
    thread.start()

    def wake() -> None:
        before = thread_cpu_s(pid, thread.native_id or 0)
        begin.set()
        while thread_cpu_s(pid, thread.native_id or 0) - before < 0.1:
            thread.join(0.01)

    pid = threading.get_native_id()
    try:
        assert busiest_thread(pid, wake) == thread.native_id
    finally:
        found.set()
        thread.join()


# --- the attacker ---


def test_an_attack_by_name() -> None:
    assert wanted("grammars") == ["grammars", "small grammars"]
    assert wanted("") == list(ATTACKS)
    with pytest.raises(ValueError, match="no attack is called"):
        wanted("nothing")


def alice(ports: Ports, seed: str = "1", seconds: float = 60.0) -> Alice:
    return Alice(Target(ports, Path("/nowhere"), 0), seconds, seed)


def test_alice_counts_what_she_is_told() -> None:
    with server(refused) as ports:
        client = alice(ports)
        client.at_once([lambda: client.post("/v1/chat/completions", {})] * 3)
    assert client.outcome.told == Counter({"503": 3})
    assert client.outcome.wrong == Counter({"503 without Retry-After": 3})


def test_alice_leaves() -> None:
    with socket.create_server((HOST, 0)) as silent:
        client = alice(Ports(openai=silent.getsockname()[1]), seconds=0.1)
        assert client.ask("GET", "/health") is None
        assert client.over()
        assert client.ask("GET", "/health") is None
    assert client.outcome.told == Counter({"left": 1})


def test_numbers_go_up_to_a_bound_and_beyond() -> None:
    client = alice(Ports())
    drawn = {client.near(100, 500) for _ in range(300)}
    assert {1, 99, 100, 101, 500} <= drawn
    assert max(drawn) == 500
