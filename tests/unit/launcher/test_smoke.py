"""The smoke test's parts: what makes a check ok, not supported, not checked or failed, and what is printed."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openai_bls.launcher.smoke import command, openai_checks, triton_checks
from openai_bls.launcher.smoke.client import HttpServer, chunks, openai_error
from openai_bls.launcher.smoke.openai_checks import check_weather, refused
from openai_bls.launcher.smoke.outcome import (
    Check,
    CheckFailedError,
    NotCheckedError,
    NotSupportedError,
    Outcome,
    count,
    run,
    summary,
)
from openai_bls.launcher.smoke.session import Session, Target, streamed_text

UNSUPPORTED = {"error": {"message": "'x' is not supported", "code": "unsupported_parameter", "param": "x"}}


class Pages(http.server.BaseHTTPRequestHandler):
    """Answers every request with what `answers` has for its path."""

    answers: dict[str, tuple[int, str, bytes]]
    asked: list[tuple[str, str, dict[str, str], bytes]]

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.asked.append(
            (self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        )
        status, kind, text = self.answers.get(self.path, (404, "text/plain", b"nothing here"))
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def url() -> Iterator[str]:
    Pages.answers, Pages.asked = {}, []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def session(url: str, **fields: Any) -> Session:
    return Session(Target(f"{url}/v1", **fields))


def outcome(call: Any, *, optional: bool = False) -> tuple[str, str]:
    (found,) = run([Check("a check", call, optional)], session("http://127.0.0.1:1"))
    return found.status, found.detail


def raiser(error: Exception) -> Any:
    def call(_: Session) -> None:
        raise error

    return call


def test_how_a_check_ends() -> None:
    assert outcome(lambda _: "fine") == ("ok", "fine")
    assert outcome(lambda _: None) == ("ok", "")
    assert outcome(raiser(CheckFailedError("bad"))) == ("FAILED", "bad")
    assert outcome(raiser(CheckFailedError("bad")), optional=True) == ("FAILED", "bad")
    assert outcome(raiser(NotCheckedError("no tool"))) == ("not checked", "no tool")
    assert outcome(raiser(NotSupportedError("no")), optional=True) == ("not supported", "no")
    # What every engine must do cannot be refused.
    assert outcome(raiser(NotSupportedError("no"))) == ("FAILED", "no")
    status, detail = outcome(lambda _: json.loads("{}")["choices"])
    assert status == "FAILED"
    assert "unexpected shape" in detail


def test_what_is_printed() -> None:
    outcomes = [Outcome("one", "ok", "fine", 12), Outcome("two", "FAILED", "bad", 3), Outcome("three", "ok", "", 0)]
    assert outcomes[0].line().split() == ["one", "ok", "12", "ms", "fine"]
    assert outcomes[2].line().endswith("0 ms")
    assert count(outcomes) == {"ok": 2, "not supported": 0, "not checked": 0, "FAILED": 1}
    assert summary(outcomes) == "3 checks: 2 ok, 0 not supported, 0 not checked, 1 FAILED"


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(CheckFailedError, match=r"http://127\.0\.0\.1:1 does not answer: .*refused"):
        HttpServer("http://127.0.0.1:1", {}, 5).ask("GET", "/")
    with pytest.raises(CheckFailedError, match="does not answer"):
        list(HttpServer("http://127.0.0.1:1", {}, 5).events("/", {}))


def test_answers(url: str) -> None:
    server = HttpServer(url, {"authorization": "Bearer key"}, 5)
    Pages.answers = {
        "/ok": (200, "application/json", b'{"a": 1}'),
        "/text": (200, "text/plain", b"a  page"),
        "/refused": (400, "application/json", json.dumps(UNSUPPORTED).encode()),
        "/embeddings": (400, "application/json", b'{"error": {"message": "The engine (null) has no embeddings."}}'),
        "/bad": (400, "application/json", b'{"error": {"message": "bad", "code": null}}'),
    }
    assert server.post("/ok", {"b": 2}) == {"a": 1}
    method, path, headers, body = Pages.asked[0]
    assert (method, path, json.loads(body)) == ("POST", "/ok", {"b": 2})
    assert headers["authorization"] == "Bearer key"
    assert headers["content-type"] == "application/json"
    assert server.get("/text").body == b"a  page"
    for path, kind, message in [
        ("/refused", NotSupportedError, "'x' is not supported"),
        ("/embeddings", NotSupportedError, "has no embeddings"),
        ("/bad", CheckFailedError, "HTTP 400: bad"),
        ("/nowhere", CheckFailedError, "HTTP 404: nothing here"),
    ]:
        with pytest.raises(kind, match=message):
            server.get(path)
    with pytest.raises(CheckFailedError, match="no JSON: a page"):
        server.get("/text").json()


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (
            "'tools': it takes structural tags, which this server's engine does not have: it has",
            NotSupportedError,
        ),
        ("'grammar': this server's engine has no grammars: neither xgrammar nor llguidance is", NotSupportedError),
        ("'logprobs' is 2; at most 0 are supported.", NotSupportedError),
        ("'stop' has 20 strings; at most 16 are supported.", CheckFailedError),
    ],
)
def test_refusals_by_their_words(url: str, message: str, kind: type[Exception]) -> None:
    body = {"error": {"message": message, "code": None, "param": "tool_choice"}}
    Pages.answers = {"/refused": (400, "application/json", json.dumps(body).encode())}
    with pytest.raises(CheckFailedError) as error:
        HttpServer(url, {}, 5).post("/refused", {})
    assert type(error.value) is kind


class Logprobs(http.server.BaseHTTPRequestHandler):
    """A chat completion of two tokens, by an engine with at most so many alternatives; None is no log-probabilities."""

    most: int | None

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked = body.get("top_logprobs", 0)
        status: int
        answer: dict[str, Any]
        if self.most is None:
            status, answer = 400, {**UNSUPPORTED}
        elif asked > self.most:
            message = f"'top_logprobs' is {asked}; at most {self.most} are supported."
            status, answer = 400, {"error": {"message": message, "code": None, "param": "top_logprobs"}}
        else:
            entry = {"logprob": -0.5, "top_logprobs": [{}] * asked}
            choice = {"logprobs": {"content": [entry, entry]}}
            status, answer = 200, {"choices": [choice], "usage": {"completion_tokens": 2}}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.mark.parametrize(
    ("most", "says"),
    [
        (5, "2 tokens"),
        (1, "2 tokens; 'top_logprobs' is 2; at most 1 are supported."),
        (0, "2 tokens; 'top_logprobs' is 2; at most 0 are supported."),
        (None, "'x' is not supported"),
    ],
)
def test_log_probabilities_without_alternatives(most: int | None, says: str) -> None:
    Logprobs.most = most
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Logprobs) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        check = Check("logprobs", openai_checks.logprobs, optional=True)
        (found,) = run([check], session(f"http://127.0.0.1:{server.server_port}", model="m"))
        server.shutdown()
        thread.join()
    assert (found.status, found.detail) == ("ok" if most is not None else "not supported", says)


def test_streams(url: str) -> None:
    server = HttpServer(url, {}, 5)
    Pages.answers = {
        "/stream": (200, "text/event-stream", b'event: x\ndata: {"a": 1}\n\n: keep alive\n\ndata: [DONE]\n\n'),
        "/json": (200, "application/json", b"{}"),
        "/refused": (400, "application/json", json.dumps(UNSUPPORTED).encode()),
    }
    assert chunks(server.events("/stream", {}), end="[DONE]") == [{"a": 1}]
    with pytest.raises(CheckFailedError, match="stream of the type application/json"):
        list(server.events("/json", {}))
    with pytest.raises(NotSupportedError):
        list(server.events("/refused", {}))


def test_streams_that_go_wrong() -> None:
    with pytest.raises(CheckFailedError, match="ended without"):
        chunks(iter(['{"a": 1}']), end="[DONE]")
    with pytest.raises(CheckFailedError, match="ended without"):
        chunks(iter([]), end="[DONE]")
    with pytest.raises(CheckFailedError, match="within the stream: the engine died"):
        chunks(iter(['{"error": {"message": "the engine died"}}', "[DONE]"]), end="[DONE]")
    with pytest.raises(CheckFailedError, match="within the stream: triton says no"):
        chunks(iter(['{"error": "triton says no"}']))


def test_openai_errors_are_found_in_tritons_too() -> None:
    inner = {"error": {"message": "no", "param": "x"}}
    assert openai_error(json.dumps(inner)) == inner["error"]
    assert openai_error(json.dumps({"error": json.dumps(inner)})) == inner["error"]
    for other in ("", "[]", '{"error": "plain"}', '{"error": null}', '{"a": 1}'):
        assert openai_error(other) is None


def test_expected_refusals() -> None:
    body = json.dumps({"error": {"message": "no", "param": "x"}}).encode()
    assert refused(400, body, 400, "x") == "no"
    for arguments in [(200, b"{}", 400, "x"), (500, body, 400, "x"), (400, body, 400, "y")]:
        with pytest.raises(CheckFailedError):
            refused(*arguments)


def test_json_by_the_schema() -> None:
    check_weather('{"city": "Rome", "warm": true}', "stop")
    for text in ("{", "[]", "{}", '{"city": "Rome", "warm": 1}', '{"city": "Oslo", "warm": true}'):
        with pytest.raises(CheckFailedError):
            check_weather(text, "length")


def test_the_text_of_a_stream() -> None:
    pieces = [{"content": "a"}, {"reasoning_content": "t"}, {"content": None}, {"content": "b"}]
    found = [{"choices": [{"index": 0, "delta": piece}]} for piece in pieces]
    assert streamed_text([*found, {"choices": [{"index": 1, "delta": {"content": "x"}}]}, {"choices": []}]) == "tab"


def test_what_was_not_given_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = session("http://127.0.0.1:1")
    for check in (triton_checks.live, triton_checks.triton_metrics, triton_checks.grpc_stream):
        with pytest.raises(NotCheckedError, match="needs --"):
            check(bare)
    monkeypatch.setitem(sys.modules, "tritonclient.grpc", None)
    with pytest.raises(NotCheckedError, match=r"tritonclient\[grpc\] is not installed"):
        triton_checks.grpc_stream(session("http://127.0.0.1:1", grpc_url="127.0.0.1:1"))


def test_a_grpc_port_that_is_not_there() -> None:
    found = session("http://127.0.0.1:1", grpc_url="127.0.0.1:1", model="m")
    with pytest.raises(CheckFailedError, match=r"127\.0\.0\.1:1"):
        triton_checks.grpc_stream(found)


def test_every_name_once() -> None:
    names = [check.name for check in command.CHECKS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "argv",
    [
        ["--url", "host:9000/v1"],
        ["--url", "http://host:9000"],
        ["--triton-url", "http://host:8000"],
        ["--url", "http://host:9000/v1", "--grpc-url", "http://host:8001"],
        ["--url", "http://host:9000/v1", "--grpc-url", "host"],
    ],
)
def test_bad_arguments(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        command.main(Path("r"), argv)
    assert exit_status.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_nothing_to_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(tmp_path, ["--model-repository", str(tmp_path / "none")]) == 2
    assert "there is no model repository" in capsys.readouterr().err


def test_a_wrong_url_fails_everything(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--url", "http://127.0.0.1:1/v1", "--triton-url", "http://127.0.0.1:1"]
    assert command.main(Path("r"), [*where, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    statuses = {check["name"]: check["status"] for check in document["checks"]}
    assert statuses.pop("gRPC ModelStreamInfer") == "not checked"
    assert statuses.pop("Triton: metrics") == "not checked"
    assert set(statuses.values()) == {"FAILED"}
    assert document["summary"]["FAILED"] == len(statuses)
