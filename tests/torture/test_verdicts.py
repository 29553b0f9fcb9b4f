"""The torture finds what it is there to find: each wrong answer, given by a server of canned bytes."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from openai_bls.core.errors import RequestDeadlineError
from openai_bls.launcher.tritonserver.ports import Ports
from tests.torture import clients
from tests.torture.cases import Case, replayed
from tests.torture.doors import HOST, Answer, Doors
from tests.torture.faults import order, wanted
from tests.torture.load import Load
from tests.torture.record import Record
from tests.torture.report import page
from tests.torture.run import Options, Run
from tests.torture.server import Server
from tests.torture.streams import WAYS, BrokenOffError, KnownStreams, SaidError, WrongError
from tests.torture.verdicts import fault_of, stalls, status_of

V1 = Case("POST /v1/chat/completions", "openai", "/v1/chat/completions", b'{"messages": "/tmp/x"}')
GENERATE = Case("generate ensemble", "http", "/v2/models/ensemble/generate", b"{")
GRPC = Case("gRPC ensemble", "grpc", "ModelStreamInfer", b"")
PASSED_ON = Case("POST /v2/models/ensemble/generate_stream", "openai", "/v2/models/ensemble/generate_stream", b"{}")
BODILESS = Case("POST /reset_prefix_cache", "openai", "/reset_prefix_cache", b"")
HURRIED = Case(V1.door, "openai", V1.path, b"{}", headers=(("x-request-timeout", "0.1"),))
ERROR = json.dumps({"error": {"message": "no"}})
LATE = json.dumps(RequestDeadlineError(0.1, waited=True).body())


def fault(case: Case, status: str, text: str, *, disturbed: bool = False) -> str | None:
    return fault_of(case, Answer(status, text, 0.0, 1.0), disturbed=disturbed)


@pytest.mark.parametrize(
    ("case", "status", "text"),
    [
        (V1, "500", ERROR),
        (V1, "503", ERROR),
        (V1, "504", LATE),
        (HURRIED, "504", ERROR),
        (GENERATE, "500", LATE),
        (V1, "late", ""),
        (V1, "broken off", ""),
        (V1, "400", "{}"),
        (V1, "400", "no"),
        (V1, "200", ""),
        (BODILESS, "400", ""),
        (V1, "200", '{"a": NaN}'),
        (V1, "400", json.dumps({"error": {"message": "/model_repository/x"}})),
        (V1, "400", json.dumps({"error": {"message": "Traceback (most recent call last)"}})),
        (V1, "200", 'data: {"choices": []}\n\n'),
        (V1, "200", "data: {\n\ndata: [DONE]\n\n"),
        (PASSED_ON, "400", "data: {\n\n"),
        (GENERATE, "500", '{"error":"stub process is not healthy"}'),
        (GENERATE, "400", '{"error":"ValueError: x"}'),
        (GRPC, "INTERNAL", ""),
        (GRPC, "OK", "KeyError: 'x'"),
    ],
)
def test_what_is_wrong(case: Case, status: str, text: str) -> None:
    assert fault(case, status, text) is not None


@pytest.mark.parametrize(
    ("case", "status", "text"),
    [
        (V1, "400", ERROR),
        (V1, "429", ERROR),
        (BODILESS, "503", json.dumps({"error": {"message": "Sequences that run hold some of the prefix cache; ..."}})),
        (BODILESS, "200", ""),
        (HURRIED, "504", LATE),
        (replace(GENERATE, body=b'{"timeout": 0.1}'), "500", LATE),
        (V1, "400", json.dumps({"error": {"message": "not /tmp/x"}})),
        (V1, "200", 'data: {"choices": []}\n\ndata: [DONE]\n\n'),
        (PASSED_ON, "400", 'data: {"error":"no"}\n\n'),
        (GENERATE, "400", '{"error":"no"}'),
        (GENERATE, "500", '{"error":"failed to parse the request JSON buffer: Invalid value. at 0"}'),
        (GRPC, "OK", "no"),
    ],
)
def test_what_is_right(case: Case, status: str, text: str) -> None:
    assert fault(case, status, text) is None


def test_a_fault_excuses_no_text_and_no_500() -> None:
    assert fault(V1, "503", ERROR, disturbed=True) is None
    assert fault(V1, "broken off", "", disturbed=True) is None
    assert fault(V1, "500", ERROR, disturbed=True) == "500"
    assert fault(V1, "503", "Traceback (most recent call last)", disturbed=True) is not None


def test_triton_speaks_for_itself() -> None:
    answer = Answer("500", '{"error":"failed to parse the request JSON buffer: x"}', 0.0, 1.0)
    assert status_of(GENERATE, answer) == "500 of Triton itself"
    assert status_of(V1, answer) == "500"


def test_a_saved_case_is_the_same() -> None:
    assert replayed(json.loads(json.dumps(V1.saved()))) == V1


@contextmanager
def canned(answer: bytes) -> Iterator[Ports]:
    """A server that gives everybody the same answer and hangs up."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            received = b""
            while b"}" not in received:
                received += connection.recv(65536)
            connection.sendall(answer)

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        yield Ports(port, port, port, port)
        thread.join()


DOOR = "/v1/chat/completions stream"
GOLDEN = WAYS[DOOR][1][0]


def stream(*texts: str, reason: str | None = "stop", done: bool = True, ended: bool = True) -> bytes:
    """A chunked answer of chat chunks."""
    chunks: list[dict[str, Any]] = [
        {"choices": [{"delta": {"content": text}, "finish_reason": None}]} for text in texts
    ]
    chunks.append({"choices": [{"delta": {}, "finish_reason": reason}]})
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n" * done
    body = events.encode()
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(body), body) + (
        b"0\r\n\r\n" * ended
    )


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (stream(GOLDEN.answer), None),
        (stream(GOLDEN.answer[:5]), WrongError),
        (stream(GOLDEN.answer[:5], reason=None), WrongError),
        (stream(GOLDEN.answer, done=False), WrongError),
        (stream("x" + GOLDEN.answer), WrongError),
        (stream(GOLDEN.answer[:5], ended=False), BrokenOffError),
        (b"", BrokenOffError),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno", SaidError),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\ndata: {"error": "no"}', SaidError),
    ],
)
def test_known_streams(answer: bytes, error: type[Exception] | None) -> None:
    with canned(answer) as ports:
        streams = KnownStreams(ports, {})
        if error is None:
            streams.check(DOOR, GOLDEN)
        else:
            with pytest.raises(error):
                streams.check(DOOR, GOLDEN)
        streams.close()


def test_an_answer_that_breaks_off() -> None:
    with canned(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}") as ports:
        doors = Doors(ports)
        assert doors.ask(V1).status == "broken off"
        doors.close()


def test_every_fault_comes_up_before_one_comes_again() -> None:
    faults = [fault.name for fault in wanted("")]
    for seed in range(3):
        dealt = [fault.name for fault in islice(order(random.Random(seed), ""), 3 * len(faults))]
        decks = [dealt[at : at + len(faults)] for at in range(0, len(dealt), len(faults))]
        assert [sorted(deck) for deck in decks] == [sorted(faults)] * 3


def test_a_report_names_the_faults_that_never_came_up(tmp_path: Path) -> None:
    run = Run(Server(tmp_path, Ports(1, 2, 3, 4), tmp_path), Options(faults="kill -9"), Record(tmp_path))
    with run.record.fault("kill -9 openai_bls"):
        pass
    assert "Never came up: kill -9 preprocessing, kill -9 tensorrt_llm, kill -9 " in page(
        run, Options(faults="kill -9")
    )
    assert "kill -9 openai_bls" not in run.missing_faults()


def test_findings_of_each_head_are_saved(tmp_path: Path) -> None:
    record = Record(tmp_path)
    for head in ["often"] * 100 + ["once"]:
        record.found(head)
    saved = [json.loads(file.read_text())["finding"] for file in tmp_path.glob("*.json")]
    assert (saved.count("often"), saved.count("once")) == (10, 1)


def test_a_stop_that_waits_for_what_triton_has_lost(tmp_path: Path) -> None:
    server = Server(tmp_path, Ports(1, 2, 3, 4), tmp_path)
    waits = "Timeout 1: Found 1 model versions\nModel 'ensemble' (version 1) has 1 in-flight inferences\n"
    server.last_words = waits
    assert not server.kept_by_triton()
    server.last_words += waits.replace("Timeout 1", "Timeout 0")
    assert server.kept_by_triton()
    server.last_words = server.last_words.replace("'ensemble'", "'openai_bls'")
    assert not server.kept_by_triton()
    server.last_words = '"Timeout 0: Found 2 live models and 0 in-flight non-inference requests"\n'
    assert server.kept_by_triton()
    server.last_words = f"not all has ended after 15 s: Runtime._shut_down\n{server.last_words}"
    assert not server.kept_by_triton()


def test_a_stall_of_the_event_loop_counts_where_the_server_was_at_work_itself() -> None:
    line = "openai_bls: the event loop stood for {} s ({} s of CPU time) with these endpoints at work: {}\n"
    held, brief, starved = ("0.51", "0.50", "responses"), ("0.50", "0.50", "models"), ("4.00", "0.02", "none")
    log = "".join(line.format(*stall) for stall in (held, brief, starved)) + "ready\n"
    assert stalls(log) == ["responses"]


def test_a_load_that_is_stopped_draws_no_further_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[int] = []

    def draw(number: int) -> Case:
        drawn.append(number)
        return V1

    def ask(_doors: Doors, _case: Case) -> Answer:
        load.stopping.set()
        return Answer("400", ERROR, 0.0, 1.0)

    cases = st.integers().map(draw)
    monkeypatch.setattr("tests.torture.load.DOORS", {"one": cases, "two": cases})
    monkeypatch.setattr(Doors, "ask", ask)
    monkeypatch.setattr(clients, "ANTICS", {"nothing": lambda _ports, _rng: None})
    load = Load(Ports(1, 2, 3, 4), Record(tmp_path), "7", {})
    load.start(fuzzers=1, askers=0)
    load.stopping.wait()
    load.stop()
    assert len(drawn) == 1
