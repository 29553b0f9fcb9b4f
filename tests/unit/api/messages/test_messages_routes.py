"""/v1/messages over HTTP: statuses, headers, error bodies, and the two shapes of an answer."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import msgspec
import pytest

from openai_bls.api.http.handlers import Api
from openai_bls.api.http.write_batcher import WriteBatcher
from openai_bls.api.messages.writers import MAX_SILENCE_S, PING
from openai_bls.core.engine_types import PromptRequest, PromptResult
from openai_bls.core.errors import InvalidRequestError, OverloadedError
from openai_bls.pipeline.lifecycle.context import RequestContext
from tests.unit.api.connections import connected
from tests.unit.api.http_support import application, asked, given_up
from tests.unit.api.messages.messages_support import WEATHER, body, events_of
from tests.unit.core_support import Answered, Bench, engine_info

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
COUNTED = body(max_tokens=None)
BOTH = pytest.mark.parametrize("fields", [body(), body(stream=True)], ids=["whole", "stream"])
PATHS = pytest.mark.parametrize(
    ("path", "fields"), [(MESSAGES, body()), (MESSAGES, body(stream=True)), (COUNT, COUNTED)]
)


def error_of(result: Answered) -> dict[str, Any]:
    assert result.headers["content-type"] == "application/json"
    assert int(result.headers["content-length"]) == len(result.body)
    whole: dict[str, Any] = result.json()
    assert set(whole) == {"type", "error", "request_id"}
    assert whole["type"] == "error"
    assert whole["request_id"] == result.headers["request-id"] == result.headers["x-request-id"]
    assert set(whole["error"]) == {"type", "message"}
    inner: dict[str, Any] = whole["error"]
    return inner


def test_the_clients_request_id_is_kept() -> None:
    result = asked(Bench(), COUNT, {}, headers=(("x-request-id", "mine"),))
    error_of(result)
    assert result.headers["request-id"] == "mine"


@PATHS
@pytest.mark.parametrize(
    ("fault", "status", "kind"),
    [
        ("model", 404, "not_found_error"),
        ("draining", 529, "overloaded_error"),
        ("size", 413, "request_too_large"),
        ("bug", 500, "api_error"),
        ("refusal", 400, "invalid_request_error"),
        ("overload", 529, "overloaded_error"),
    ],
)
def test_refusals(path: str, fields: dict[str, Any], fault: str, status: int, kind: str) -> None:
    bench = Bench(max_request_bytes=10 if fault == "size" else 10**6)
    bench.service.draining = fault == "draining"
    bench.prompts.result = {
        "bug": RuntimeError("secret path /x"),
        "refusal": InvalidRequestError("m"),
        "overload": OverloadedError("m"),
    }.get(fault)
    result = asked(bench, path, {**fields, "model": "claude"} if fault == "model" else fields)
    assert (result.status, error_of(result)["type"]) == (status, kind)
    assert "secret" not in error_of(result)["message"]
    assert ("claude" in error_of(result)["message"]) is (fault == "model")
    assert ("retry-after" in result.headers) is (status == 529)
    assert bench.busy in ([], [1, 0])


@PATHS
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((), 401),
        ((("x-api-key", "wrong"),), 401),
        ((("x-api-key", "k1"), ("anthropic-version", "2023-06-01"), ("anthropic-beta", "any")), 400),
        ((("authorization", "Bearer k1"),), 400),
    ],
)
def test_authentication(path: str, fields: dict[str, Any], headers: tuple[tuple[str, str], ...], status: int) -> None:
    result = asked(Bench(api_key="k1"), path, {**fields, "messages": []}, headers=headers)
    assert result.status == status
    assert (error_of(result)["type"] == "authentication_error") is (status == 401)
    assert ("'x-api-key'" in error_of(result)["message"]) is (status == 401)


@PATHS
def test_preprocessings_refusal(path: str, fields: dict[str, Any]) -> None:
    bench = Bench()
    bench.prompts.result = PromptResult(error="'reasoning_effort' ...", param="reasoning_effort")
    result = asked(bench, path, {**fields, "output_config": {"effort": "low"}})
    assert (result.status, error_of(result)["type"]) == (400, "invalid_request_error")
    assert "output_config.effort" in error_of(result)["message"]


@PATHS
def test_what_the_model_cannot_do(path: str, fields: dict[str, Any]) -> None:
    engine = engine_info(supported=("temperature",), grammar_backend="")
    forced = {**fields, "tools": [WEATHER], "tool_choice": {"type": "any"}}
    result = asked(Bench(engine), path, forced)
    assert result.status == 400
    assert "'tool_choice'" in error_of(result)["message"]


ENGINE_ERRORS = pytest.mark.parametrize(
    ("invalid", "status", "kind"), [(False, 500, "api_error"), (True, 400, "invalid_request_error")]
)


@ENGINE_ERRORS
def test_an_error_before_the_first_token(invalid: bool, status: int, kind: str) -> None:
    bench = Bench()
    result = asked(
        bench, MESSAGES, body(), lambda: bench.engine.deliver(0, [], "error", error="no memory", invalid=invalid)
    )
    assert (result.status, error_of(result)) == (status, {"type": kind, "message": "no memory"})


@ENGINE_ERRORS
def test_an_error_before_the_first_token_of_a_stream(invalid: bool, status: int, kind: str) -> None:
    """The stream has begun as soon as the engine has the request."""
    bench = Bench()
    result = asked(
        bench,
        MESSAGES,
        body(stream=True),
        lambda: bench.engine.deliver(0, [], "error", error="no memory", invalid=invalid),
    )
    assert result.status == 200
    assert [event["type"] for event in events_of(result)] == ["message_start", "ping", "error"]
    assert events_of(result)[-1]["error"] == {"type": kind, "message": "no memory"}


async def test_a_stream_begins_before_the_first_token_and_its_silence_is_broken_by_pings() -> None:
    async with connected(keep_alive_interval_s=0.01) as (bench, _, client):
        text = json.dumps(body(stream=True)).encode()
        client.send(b"POST %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" % MESSAGES.encode())
        client.send(b"Content-Length: %d\r\n\r\n%b" % (len(text), text))
        received = b""
        while received.count(PING) < 4:
            received += await client.reader.readuntil(PING)
        assert len(bench.engine.requests) == 1
        # No event, no comment but these.
        assert received.count(b"event: message_start") == 1
        assert received.count(b"event: ") == 5
        bench.engine.deliver(0, "a")
        silent = await client.reader.readuntil(PING)
        assert b"text_delta" in silent
        bench.engine.deliver(0, "b", "length")
        assert (await client.reader.read()).count(b"event: message_stop") == 1


@pytest.mark.parametrize(("setting", "interval"), [(15.0, 10.0), (2.0, 2.0)])
async def test_pings_come_every_10_s_or_more_often(setting: float, interval: float) -> None:
    bench = Bench(keep_alive_interval_s=setting)
    api = Api(bench.service, WriteBatcher(asyncio.get_running_loop()))
    assert api.event_stream(RequestContext(), MAX_SILENCE_S).interval_s == interval
    assert api.event_stream(RequestContext()).interval_s == setting


def test_an_error_in_the_middle_of_a_stream() -> None:
    bench = Bench()

    def feed() -> None:
        bench.engine.deliver(0, "a")
        bench.engine.deliver(0, [], "error", error="no memory")

    result = asked(bench, MESSAGES, body(stream=True), feed)
    assert result.status == 200
    assert events_of(result)[-1] == {"type": "error", "error": {"type": "api_error", "message": "no memory"}}
    assert [e["type"] for e in events_of(result)].count("message_stop") == 0


# --- lengths ---

# As Claude Code reads them.
TOO_LONG = re.compile(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", re.IGNORECASE)
NO_ROOM = re.compile(r"input length and `max_tokens` exceed context limit: (\d+) \+ (\d+) > (\d+)")


@pytest.mark.parametrize("path", [MESSAGES, f"{MESSAGES}/render"])
@BOTH
@pytest.mark.parametrize(
    ("limit", "pattern", "numbers"), [(1, TOO_LONG, (2, 1)), (2, NO_ROOM, (2, 50, 2)), (3, None, ())]
)
def test_errors_of_length(
    path: str, fields: dict[str, Any], limit: int, pattern: re.Pattern[str] | None, numbers: tuple[int, ...]
) -> None:
    bench = Bench(engine_info(max_model_len=limit))

    def feed() -> None:
        if bench.engine.requests:
            bench.engine.deliver(0, "x", "length")

    result = asked(bench, path, fields, feed)
    if pattern is None:
        assert result.status == 200
        return
    assert (result.status, error_of(result)["type"]) == (400, "invalid_request_error")
    found = pattern.match(error_of(result)["message"])
    assert found is not None
    assert tuple(map(int, found.groups())) == numbers
    assert bench.engine.requests == []


@BOTH
def test_a_prompt_that_was_refused_untokenized_is_counted(fields: dict[str, Any]) -> None:
    bench = Bench(engine_info(max_model_len=1000))
    prepare = bench.prompts.prepare

    async def refuse(request: PromptRequest) -> PromptResult:
        if request.max_prompt_tokens is not None:
            return PromptResult(error="too many", param="messages", code="context_length_exceeded")
        result = await prepare(request)
        return PromptResult([[1] * 2000], result.bad_words)

    bench.prompts.prepare = refuse  # type: ignore[method-assign]
    result = asked(bench, MESSAGES, fields)
    assert result.status == 400
    assert error_of(result)["message"] == "prompt is too long: 2000 tokens > 1000 maximum"


@BOTH
@pytest.mark.parametrize("code", ["context_length_exceeded", "string_above_max_length"])
def test_a_prompt_whose_tokens_nobody_counts(fields: dict[str, Any], code: str) -> None:
    bench = Bench()
    bench.prompts.result = PromptResult(error="The prompt has 9 bytes.", param="messages", code=code)
    result = asked(bench, MESSAGES, fields)
    assert result.status == 400
    assert error_of(result)["message"].startswith("prompt is too long: ")


# --- counting ---


def test_counting() -> None:
    bench = Bench()
    result = asked(bench, COUNT, COUNTED)
    assert (result.status, result.json()) == (200, {"input_tokens": 2})
    assert bench.engine.requests == []
    assert max(bench.busy) == 1


def test_what_is_counted_is_the_prompt_that_would_be_read() -> None:
    fields = {
        "model": "tiny",
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So"}],
        "tools": [WEATHER],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "adaptive"},
    }
    counting, asking = Bench(), Bench()
    counted = asked(counting, COUNT, fields)
    whole = asked(asking, MESSAGES, {**fields, "max_tokens": 5}, lambda: asking.engine.deliver(0, "x", "length"))
    (prompt,) = asking.prompts.requests
    assert counting.prompts.requests == [msgspec.structs.replace(prompt, max_prompt_tokens=None)]
    assert counted.json()["input_tokens"] == whole.json()["usage"]["input_tokens"]


def test_counting_a_prompt_that_does_not_fit() -> None:
    assert asked(Bench(engine_info(max_model_len=1)), COUNT, COUNTED).json() == {"input_tokens": 2}


# --- going away ---


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_stops_the_engine(stream: bool) -> None:
    bench = Bench()
    await given_up(application(bench), bench.engine, MESSAGES, body(stream=stream), "a" if stream else "")
    assert bench.service.in_progress == 0


def test_counting_is_an_endpoint_of_its_own_in_the_metrics() -> None:
    bench = Bench()
    metrics = bench.service.metrics
    bench.service.on_end = metrics.ended
    assert asked(bench, COUNT, COUNTED).status == 200
    bench.prompts.result = PromptResult(error="'messages[0]' is bad", param="messages[0]")
    assert asked(bench, COUNT, COUNTED).status == 400
    metrics.flush()
    counted = {
        (sample.labels["endpoint"], sample.labels["outcome"]): sample.value
        for family in metrics.collect()
        for sample in family.samples
        if sample.name == "openai_bls_requests_total"
    }
    assert counted == {("messages.count_tokens", "done"): 1, ("messages.count_tokens", "400"): 1}
