"""The smoke test's parts: what makes a check ok, not supported, not checked or failed, and what is printed."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk

from openai_bls.commands.main import run as run_command
from openai_bls.launcher.smoke import command, triton_checks
from openai_bls.launcher.smoke.check import Check, Outcome, openai_error, run
from openai_bls.launcher.smoke.openai_checks import check_weather, must_refuse, refused
from openai_bls.launcher.smoke.session import (
    CheckFailedError,
    NotCheckedError,
    Session,
    Target,
    events,
    get,
    post,
    streamed_text,
)
from tests.unit.api import http_support
from tests.unit.api.tasks.test_engines_that_pool import answers_by, bench_of

UNSUPPORTED = {"error": {"message": "'x' is not supported", "code": "unsupported_parameter", "param": "x"}}
Page = tuple[int, str, bytes]


def json_page(status: int, document: Any) -> Page:
    return status, "application/json", json.dumps(document).encode()


class Pages(http.server.BaseHTTPRequestHandler):
    """Answers every request with what `answer` makes of its path and body."""

    answer: Callable[[str, Any], Page]
    asked: list[tuple[str, str, dict[str, str], bytes]]

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.asked.append((self.command, self.path, headers, body))
        status, kind, text = type(self).answer(self.path, json.loads(body) if body else None)
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def url() -> Iterator[str]:
    Pages.asked = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def answers(pages: dict[str, Page]) -> None:
    Pages.answer = lambda path, body: pages.get(path, (404, "text/plain", b"nothing  here"))


def session(url: str, **fields: Any) -> Session:
    return Session(Target(f"{url}/v1", model="m", **fields))


def outcome(call: Any, *, optional: bool = False, url: str = "http://127.0.0.1:1") -> tuple[str, str]:
    (found,) = run([Check("a check", call, optional)], session(url))
    return found.status, found.detail


def named(name: str) -> Check:
    """One of the checks of the command."""
    return next(check for check in command.CHECKS if check.name == name)


def raiser(error: Exception) -> Any:
    def call(_: Session) -> None:
        raise error

    return call


def test_how_a_check_ends() -> None:
    assert outcome(lambda _: "fine") == ("ok", "fine")
    assert outcome(lambda _: None) == ("ok", "")
    assert outcome(raiser(CheckFailedError("bad")), optional=True) == ("FAILED", "bad")
    assert outcome(raiser(NotCheckedError("no tool"))) == ("not checked", "no tool")
    status, detail = outcome(lambda _: json.loads("{}")["choices"])
    assert status == "FAILED"
    assert "unexpected shape" in detail


@pytest.mark.parametrize("name", ["GET /health", "responses", "bad request: no JSON", "gRPC ModelStreamInfer"])
def test_a_server_that_is_not_there(name: str) -> None:
    (found,) = run([named(name)], session("http://127.0.0.1:1", grpc_url="127.0.0.1:1"))
    assert found.status == "FAILED"
    assert "127.0.0.1:1" in found.detail


def test_what_is_printed() -> None:
    outcomes = [Outcome("one", "ok", "fine", 12), Outcome("two", "FAILED", "bad", 3), Outcome("three", "ok", "", 0)]
    assert outcomes[0].line().split() == ["one", "ok", "12", "ms", "fine"]
    assert outcomes[2].line().endswith("0 ms")


@pytest.mark.parametrize(
    ("second", "status", "says"),
    [
        ([2.0], "ok", "1 numbers"),
        ([1.0], "FAILED", "two texts have the same embedding"),
        ([1.0, 2.0], "FAILED", "embeddings of 1 and 2 numbers"),
    ],
)
def test_an_endpoint_of_the_registry(url: str, second: list[float], status: str, says: str) -> None:
    answers({"/v1/embeddings": json_page(200, {"data": [{"embedding": [1.0]}, {"embedding": second}]})})
    (found,) = run([named("POST /v1/embeddings")], session(url, api_key="key"))
    assert (found.status, found.detail) == (status, says)
    method, path, headers, body = Pages.asked[-1]
    assert (method, path, json.loads(body)["model"]) == ("POST", "/v1/embeddings", "m")
    assert headers["authorization"] == "Bearer key"


@pytest.mark.parametrize(
    ("message", "code", "status"),
    [
        ("'x' is not supported", "unsupported_parameter", "not supported"),
        ("The engine (null) has no embeddings.", None, "not supported"),
        ("'tools': it takes structural tags, which this server's engine does not have: it has", None, "not supported"),
        ("'grammar': this server's engine has no grammars: neither is", None, "not supported"),
        ("'logprobs' is 2; at most 0 are supported.", None, "not supported"),
        ("'stop' has 20 strings; at most 16 are supported.", None, "FAILED"),
        ("bad", None, "FAILED"),
    ],
)
def test_refusals(url: str, message: str, code: str | None, status: str) -> None:
    answers({"/v1/x": json_page(400, {"error": {"message": message, "code": code, "param": "p"}})})

    def ask(found: Session) -> None:
        post(found.v1, "/x", {})

    expected = message if status == "not supported" else f"HTTP 400: {message}"
    assert outcome(ask, optional=True, url=url) == (status, expected)
    # What every engine must do cannot be refused.
    assert outcome(ask, url=url) == ("FAILED", f"HTTP 400: {message}")
    assert outcome(lambda s: get(s.root, "/nowhere"), url=url) == ("FAILED", "HTTP 404: nothing here")


@pytest.mark.parametrize(
    ("most", "says"),
    [
        (5, "2 tokens"),
        (1, "2 tokens; 'top_logprobs' is 2; at most 1 are supported."),
        (0, "2 tokens; 'top_logprobs' is 2; at most 0 are supported."),
        (None, "'x' is not supported"),
    ],
)
def test_log_probabilities_without_alternatives(url: str, most: int | None, says: str) -> None:
    def answer(path: str, body: Any) -> Page:
        asked = body.get("top_logprobs", 0)
        if most is None:
            return json_page(400, UNSUPPORTED)
        if asked > most:
            message = f"'top_logprobs' is {asked}; at most {most} are supported."
            return json_page(400, {"error": {"message": message, "code": None, "param": "top_logprobs"}})
        entry = {"logprob": -0.5, "top_logprobs": [{}] * asked}
        choice = {"logprobs": {"content": [entry, entry]}}
        return json_page(200, {"choices": [choice], "usage": {"completion_tokens": 2}})

    Pages.answer = answer
    (found,) = run([named("chat/completions, logprobs")], session(url))
    assert (found.status, found.detail) == ("ok" if most is not None else "not supported", says)


@pytest.mark.parametrize(
    ("stream", "end", "says"),
    [
        ('event: x\ndata: {"a": 1}\n\n: keep alive\n\ndata: [DONE]\n\n', "[DONE]", None),
        ('data: {"a": 1}\n\n', None, None),
        ('data: {"a": 1}\n\n', "[DONE]", r"\[DONE\]"),
        ("", "[DONE]", r"\[DONE\]"),
        ('data: {"error": {"message": "the engine died"}}\n\n', None, "the engine died"),
        ('data: {"error": "triton says no"}\n\n', None, "triton says no"),
    ],
)
def test_streams(url: str, stream: str, end: str | None, says: str | None) -> None:
    answers({"/v1/stream": (200, "text/event-stream", stream.encode()), "/v1/json": json_page(200, {})})
    client = session(url).v1
    with pytest.raises(CheckFailedError, match="'application/json'"):
        events(client, "/json", {})
    if says is None:
        assert events(client, "/stream", {}, end=end) == [{"a": 1}]
    else:
        with pytest.raises(CheckFailedError, match=says):
            events(client, "/stream", {}, end=end)


def test_an_error_within_a_stream_of_the_openai_package(url: str) -> None:
    error = 'data: {"error": {"message": "the engine died"}}\n\n'
    answers({"/v1/chat/completions": (200, "text/event-stream", error.encode())})

    def ask(found: Session) -> None:
        list(found.v1.chat.completions.create(**found.body(), stream=True))

    assert outcome(ask, url=url) == ("FAILED", "an error within the stream: the engine died")


def test_openai_errors_are_found_in_tritons_too() -> None:
    inner = {"error": {"message": "no", "param": "x"}}
    assert openai_error(json.dumps(inner)) == inner["error"]
    assert openai_error(json.dumps({"error": json.dumps(inner)})) == inner["error"]
    for other in ("", "[]", '{"error": "plain"}', '{"error": null}', '{"a": 1}'):
        assert openai_error(other) is None


def test_expected_refusals(url: str) -> None:
    body = json.dumps({"error": {"message": "no", "param": "x"}})
    assert must_refuse(400, body, 400, "x") == "no"
    for arguments in [(200, "{}", 400, "x"), (500, body, 400, "x"), (400, body, 400, "y")]:
        with pytest.raises(CheckFailedError):
            must_refuse(*arguments)
    answers({"/v1/x": (400, "application/json", body.encode())})
    assert refused(lambda: post(session(url).v1, "/x", {}), 400, "x") == "no"
    with pytest.raises(CheckFailedError, match="accepted"):
        refused(lambda: None, 400, "x")


def test_json_by_the_schema() -> None:
    assert check_weather('{"city": "Rome", "warm": true}', "stop") == '{"city": "Rome", "warm": true}'
    for text in ("{", "[]", "{}", '{"city": "Rome", "warm": 1}', '{"city": "Oslo", "warm": true}'):
        with pytest.raises(CheckFailedError):
            check_weather(text, "length")


def test_the_text_of_a_stream() -> None:
    deltas = [(0, {"reasoning_content": "t"}), (0, {"content": None}), (0, {"content": "b"}), (1, {"content": "x"})]
    fields = {"id": "1", "created": 1, "model": "m", "object": "chat.completion.chunk"}
    choices = [[], *([{"index": index, "delta": delta, "finish_reason": None}] for index, delta in deltas)]
    found = [ChatCompletionChunk.model_validate({**fields, "choices": each}) for each in choices]
    assert streamed_text(found) == "tb"


def test_what_was_not_given_is_not_checked() -> None:
    bare = session("http://127.0.0.1:1")
    outcomes = {outcome.name: outcome.detail for outcome in run(triton_checks.CHECKS, bare)}
    assert set(outcomes.values()) == {"needs --triton-url", "needs --grpc-url", "needs --metrics-url"}
    assert outcomes["gRPC ModelStreamInfer"] == "needs --grpc-url"


TASKS = st.sampled_from(["generate", "embeddings", "score", "classify", "reward", "chat"])


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    served=st.lists(st.tuples(TASKS, st.booleans()), min_size=1, max_size=4),
    wanted=st.lists(TASKS, max_size=2),
    named=st.none() | st.integers(0, 4),
)
def test_the_model_that_is_asked_has_the_task(
    url: str, served: list[tuple[str, bool]], wanted: list[str], named: int | None
) -> None:
    """The first that fits, or the one that the command names, if it fits or is not listed."""
    cards = [
        {
            "id": str(at),
            "object": "model",
            "created": 1,
            "owned_by": "x",
            "task": task,
            "max_model_len": 8 if own else None,
        }
        for at, (task, own) in enumerate(served)
    ]
    answers({"/v1/models": json_page(200, {"object": "list", "data": cards})})
    found = Session(Target(f"{url}/v1", model=None if named is None else str(named)))
    if named is None:
        fitting = [str(at) for at, (task, own) in enumerate(served) if (task in wanted if wanted else own)]
    else:
        task = served[named][0] if named < len(served) else "generate"
        fitting = [str(named)] if not wanted or task in wanted else []
    if fitting:
        assert found.engine(*wanted) == fitting[0]
    else:
        with pytest.raises(NotCheckedError):
            found.engine(*wanted)


@pytest.mark.parametrize("task", ["embeddings", "score", "classify", "reward"])
async def test_a_server_whose_default_engine_pools(task: str) -> None:
    """It is asked for what it does, and for what every engine does; nothing of it fails."""
    bench = bench_of(task, supported=("pooling", "use_activation"), labels=("a",) if task == "classify" else ())
    answers_by(bench, lambda request: [float(len(request.prompt_token_ids))])
    checks = [check for check in command.CHECKS if check not in triton_checks.CHECKS and "generate, " not in check.name]
    async with http_support.served(bench) as port:
        asked = Session(Target(f"http://127.0.0.1:{port}/v1"))
        outcomes = await asyncio.to_thread(lambda: {one.name: one for one in run(checks, asked)})
    assert {one.name: one.detail for one in outcomes.values() if one.status == "FAILED"} == {}
    own = {name for name, one in outcomes.items() if one.status == "ok"}
    assert {path for path, tasks in POOLED.items() if task in tasks} == own & set(POOLED)
    assert own > {
        "GET /v1/models",
        "tokenize, then detokenize",
        "bad request: unknown field",
        "bad request: unknown model",
    }
    assert outcomes["chat/completions"].status == outcomes["responses"].status == "not checked"


POOLED = {
    "POST /v1/embeddings": ("embeddings",),
    "POST /v1/rerank": ("score",),
    "POST /v1/score": ("score",),
    "POST /v1/moderations": ("classify",),
    "POST /v1/classify": ("classify", "reward"),
}


def test_every_name_once() -> None:
    names = [check.name for check in command.CHECKS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "argv",
    [
        ["--url", "ftp://host:9000/v1"],
        ["--url", "host:nine"],
        ["--triton-url", "http://host:8000"],
        ["--url", "http://host:9000/v1", "--grpc-url", "http://host:8001"],
        ["--url", "http://host:9000/v1", "--grpc-url", "host"],
    ],
)
def test_bad_arguments(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        run_command("smoke", argv)
    assert exit_status.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_nothing_to_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("smoke", ["--model-repository", str(tmp_path / "none")]) == 2
    assert "there is no model repository" in capsys.readouterr().err


def test_a_wrong_url_fails_everything(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--url", "http://127.0.0.1:1/v1", "--triton-url", "http://127.0.0.1:1"]
    assert run_command("smoke", [*where, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    statuses = {check["name"]: check["status"] for check in document["checks"]}
    assert statuses.pop("gRPC ModelStreamInfer") == "not checked"
    assert statuses.pop("Triton: metrics") == "not checked"
    assert set(statuses.values()) == {"FAILED"}
    assert document["summary"]["FAILED"] == len(statuses)
