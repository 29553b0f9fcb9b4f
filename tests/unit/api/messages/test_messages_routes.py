"""/v1/messages over HTTP: statuses, headers, error bodies, and the two shapes of an answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from openai_bls.core.engine_types import PromptResult
from openai_bls.core.errors import InvalidRequestError, OverloadedError
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
    thinking = {"type": "enabled", "budget_tokens": 1024}
    result = asked(Bench(), path, {**fields, "thinking": thinking})
    assert result.status == 400
    assert error_of(result)["message"].startswith("thinking: ")
    engine = engine_info(supported=("temperature",), grammar_backend="")
    forced = {**fields, "tools": [WEATHER], "tool_choice": {"type": "any"}}
    result = asked(Bench(engine), path, forced)
    assert result.status == 400
    assert "'tool_choice'" in error_of(result)["message"]


@BOTH
@pytest.mark.parametrize(
    ("invalid", "status", "kind"), [(False, 500, "api_error"), (True, 400, "invalid_request_error")]
)
def test_an_error_before_the_first_token(fields: dict[str, Any], invalid: bool, status: int, kind: str) -> None:
    bench = Bench()
    result = asked(
        bench, MESSAGES, fields, lambda: bench.engine.deliver(0, [], "error", error="no memory", invalid=invalid)
    )
    assert (result.status, error_of(result)) == (status, {"type": kind, "message": "no memory"})


def test_an_error_in_the_middle_of_a_stream() -> None:
    bench = Bench()

    def feed() -> None:
        bench.engine.deliver(0, "a")
        bench.engine.deliver(0, [], "error", error="no memory")

    result = asked(bench, MESSAGES, body(stream=True), feed)
    assert result.status == 200
    assert events_of(result)[-1] == {"type": "error", "error": {"type": "api_error", "message": "no memory"}}
    assert [e["type"] for e in events_of(result)].count("message_stop") == 0


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
