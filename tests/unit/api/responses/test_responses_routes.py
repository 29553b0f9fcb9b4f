"""The endpoints of /v1/responses, as HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response, ResponseItem
from openai.types.responses.input_token_count_response import InputTokenCountResponse

from openai_bls.core.engine_types import PromptResult
from tests.unit.api.http_support import given_up
from tests.unit.api.responses.responses_support import PATH, THINKS_AND_CALLS, WEATHER, Place, call_text, checked
from tests.unit.core_support import Bench, engine_info


def test_a_whole_response() -> None:
    place = Place()
    reply = place.create({"input": "hi", "instructions": "be brief"}, ["hé"])
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"].startswith("req_")
    response = reply.json()
    parsed = checked(Response, response)
    assert parsed.output_text == "hé"
    assert response["id"].startswith("resp_")
    assert place.messages == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


def test_what_a_request_asked_for_is_told_back() -> None:
    body = {
        "model": "tiny",
        "instructions": "be brief",
        "max_output_tokens": 50,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "user": "u",
        "temperature": 0.5,
        "top_p": 0.25,
        "reasoning": {"effort": "medium"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        "tools": [WEATHER],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
        "store": False,
    }
    response = Place().whole(body)
    for name in set(body) - {"reasoning", "text", "tools"}:
        assert response[name] == body[name], name
    assert response["reasoning"] == {"effort": "medium", "summary": None}
    assert response["text"] == {
        "format": {**body["text"]["format"], "description": None, "strict": False},  # type: ignore[index]
        "verbosity": "medium",
    }
    assert response["tools"] == [{**WEATHER, "strict": False}]


def test_what_holds_by_default_is_told() -> None:
    info = engine_info()
    response = Place().whole({})
    assert response["model"] == "tiny"
    assert response["temperature"] == info.sampling_defaults.temperature
    assert response["top_p"] == info.sampling_defaults.top_p
    assert response["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert (response["tool_choice"], response["tools"], response["metadata"]) == ("auto", [], {})
    assert (response["parallel_tool_calls"], response["store"], response["truncation"]) == (True, True, "disabled")


@pytest.mark.parametrize("choice", ["none", "required", {"type": "function", "name": "weather"}])
def test_tool_choices_are_told_back(choice: Any) -> None:
    text = "ok" if choice == "none" else call_text("weather", "{}")
    response = Place().whole({"tools": [WEATHER], "tool_choice": choice}, [text])
    assert response["tool_choice"] == choice
    assert [item["type"] for item in response["output"]] == ["message" if choice == "none" else "function_call"]
    assert response["status"] == "completed"


def test_retrieving_and_deleting() -> None:
    for stream in (False, True):
        place = Place()
        response = place.streamed({})[-1]["response"] if stream else place.whole({})
        path = f"{PATH}/{response['id']}"
        assert place.ask("GET", path).json() == response
        deleted = place.ask("DELETE", path)
        assert (deleted.status, deleted.json()) == (200, {"id": response["id"], "object": "response", "deleted": True})
        for method in ("GET", "DELETE"):
            gone = place.ask(method, path)
            assert gone.status == 404
            assert response["id"] in gone.error["message"]


def test_what_is_not_stored_cannot_be_retrieved_or_continued() -> None:
    place = Place()
    response = place.whole({"store": False})
    assert response["store"] is False
    assert place.ask("GET", f"{PATH}/{response['id']}").status == 404
    error = place.ask("POST", PATH, {"input": "x", "previous_response_id": response["id"]})
    assert (error.status, error.error["code"]) == (400, "previous_response_not_found")
    assert error.error["param"] == "previous_response_id"


def test_incomplete_responses_are_stored_too() -> None:
    place = Place()
    first = place.whole({}, ["<think>hm"], "length")
    place.whole({"input": "go on", "previous_response_id": first["id"]})
    assert [message["role"] for message in place.messages] == ["user", "assistant", "user"]
    assert place.messages[1]["reasoning_content"] == "hm"


def test_a_conversation_by_previous_response_id() -> None:
    place = Place()
    text = "<think>hm</think>Look:" + call_text("weather", '{"city": "Paris"}')
    tools = {"tools": [WEATHER], "instructions": "be brief"}
    first = place.whole({"input": "weather?", **tools}, [text])
    call = first["output"][-1]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    second = place.whole({"input": [output], "previous_response_id": first["id"], "tools": [WEATHER]}, ["It is sunny."])
    assert second["previous_response_id"] == first["id"]
    function = {"name": "weather", "arguments": {"city": "Paris"}}
    conversation = [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": "Look:",
            "reasoning_content": "hm",
            "tool_calls": [{"id": call["call_id"], "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call["call_id"], "content": "sunny"},
    ]
    # The instructions belong to their own request.
    assert place.messages == conversation
    place.whole({"input": "thanks", "previous_response_id": second["id"], "instructions": "be long"})
    assert place.messages == [
        {"role": "system", "content": "be long"},
        *conversation,
        {"role": "assistant", "content": "It is sunny."},
        {"role": "user", "content": "thanks"},
    ]
    # The same, sent in full.
    place.whole({"input": [{"role": "user", "content": "weather?"}, *first["output"], output], "tools": [WEATHER]})
    assert place.messages == conversation


def test_a_conversation_goes_on_without_new_input() -> None:
    place = Place()
    first = place.whole({"input": "hi"})
    body = {"previous_response_id": first["id"]}
    reply = place.create_fed(body, lambda: place.bench.engine.deliver(1, "more", "stop"))
    assert reply.status == 200
    assert [message["role"] for message in place.messages] == ["user", "assistant"]


def test_input_items() -> None:
    place = Place()
    first = place.whole({"input": "one"}, ["two"])
    second = place.whole({"input": "three", "previous_response_id": first["id"]})

    def listed(response: dict[str, Any], query: str = "") -> dict[str, Any]:
        reply = place.ask("GET", f"{PATH}/{response['id']}/input_items", query=query)
        assert reply.status == 200
        found: dict[str, Any] = reply.json()
        for item in found["data"]:
            checked(ResponseItem, item)
        return found

    def texts(response: dict[str, Any], query: str = "") -> list[str]:
        return [item["content"][0]["text"] for item in listed(response, query)["data"]]

    assert texts(first) == ["one"]
    assert texts(second) == ["three", "two", "one"]
    assert texts(second, "order=asc&limit=2") == ["one", "two"]
    last = listed(second, "order=asc&limit=2")["last_id"]
    assert texts(second, f"order=asc&after={last}") == ["three"]
    assert place.ask("GET", f"{PATH}/resp_0/input_items").status == 404
    # The latest twenty by default.
    many = place.whole({"input": [{"role": "user", "content": str(at)} for at in range(30)]})
    assert texts(many) == [str(at) for at in range(29, 9, -1)]
    assert [listed(many, query)["has_more"] for query in ("", "limit=29", "limit=30")] == [True, True, False]
    nothing = listed(many, f"after={listed(many, 'order=asc')['first_id']}")
    assert nothing == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}


@pytest.mark.parametrize(
    ("method", "tail", "query", "status"),
    [
        ("GET", "", "stream=false", 200),
        ("GET", "", "stream=true", 400),
        ("GET", "", "include[]=message.output_text.logprobs", 400),
        ("GET", "", "starting_after=3", 400),
        ("GET", "", "include[]=reasoning.encrypted_content&include_obfuscation=true", 200),
        ("GET", "", "include_obfuscation=perhaps", 400),
        ("GET", "", "include=file_search_call", 400),
        ("GET", "", "include=file_search_call.results", 200),
        ("GET", "", "stream=true&starting_after=-1", 400),
        *(("GET", "/input_items", query, 400) for query in ("before=x", "limit=0", "limit=101", "limit=x", "limit=")),
        *(("GET", "/input_items", query, 400) for query in ("order=up", "after=x")),
        ("DELETE", "", "x=1", 400),
    ],
)
def test_query_parameters(method: str, tail: str, query: str, status: int) -> None:
    place = Place()
    response = place.whole({})
    reply = place.ask(method, f"{PATH}/{response['id']}{tail}", query=query)
    assert reply.status == status
    if status == 400:
        assert reply.error["param"].partition("[")[0] in query


def test_cancelling() -> None:
    place = Place()
    response = place.whole({})
    assert place.ask("POST", f"{PATH}/{response['id']}/cancel").status == 400
    assert place.ask("POST", f"{PATH}/resp_0/cancel").status == 404


def test_counting_tokens() -> None:
    place = Place()
    body = {"model": "tiny", "input": "four", "instructions": "12345", "tools": [WEATHER]}
    reply = place.ask("POST", f"{PATH}/input_tokens", body)
    assert reply.status == 200
    counted = checked(InputTokenCountResponse, reply.json())
    assert (counted.input_tokens, counted.object) == (9, "response.input_tokens")
    assert place.bench.prompts.requests[-1].tools is not None
    first = place.whole({"input": "one"}, ["two"])
    reply = place.ask("POST", f"{PATH}/input_tokens", {"previous_response_id": first["id"], "input": "!"})
    assert reply.json()["input_tokens"] == 7
    for bad, param in (({"input": "x", "temperature": 1}, "temperature"), ({}, "input")):
        assert place.ask("POST", f"{PATH}/input_tokens", bad).error["param"] == param
    assert place.ask("POST", f"{PATH}/input_tokens", {"input": "x", "model": "gpt"}).status == 404


def test_refusals_have_this_apis_names_streamed_or_not() -> None:
    place = Place()
    assert place.refused(temperature=9)["param"] == "temperature"
    assert place.refused(background=True, store=False)["param"] == "store"
    long = place.refused(input="x" * 1000)
    assert (long["param"], long["code"]) == ("input", "context_length_exceeded")
    assert place.refused(top_logprobs=30)["param"] == "top_logprobs"
    plain = Place(Bench(engine_info(supported=(), grammar_backend=""), formats=THINKS_AND_CALLS))
    assert plain.refused(text={"format": {"type": "json_object"}})["param"] == "text.format"
    assert "'text.format'" in plain.refused(text={"format": {"type": "json_object"}})["message"]
    logprobs = plain.refused(include=["message.output_text.logprobs"])
    assert (logprobs["param"], "'include'" in logprobs["message"]) == ("include", True)
    assert plain.refused(tools=[WEATHER], tool_choice="required")["param"] == "tool_choice"


def test_schemas_that_nest_too_deeply_are_refused() -> None:
    """Also one that is just within the limit as it is read, and beyond it as it is written again."""

    def status(depth: int) -> int:
        place = Place()
        nested = b'{"a":' * depth + b"1" + b"}" * depth
        body = b'{"input":"x","stream":true,"tools":[{"type":"function","name":"f","parameters":' + nested + b"}]}"

        def feed() -> None:
            if place.bench.engine.requests:
                place.bench.engine.deliver(0, "a", "stop")

        reply = place.create_fed(body, feed)
        if reply.status == 200:
            assert reply.events[-1]["type"] == "response.completed"
        return reply.status

    taken, refused = 1, 100_000
    while refused - taken > 1:
        middle = (taken + refused) // 2
        taken, refused = (middle, refused) if status(middle) == 200 else (taken, middle)
    assert taken > 100
    assert {status(depth) for depth in range(refused, refused + 20)} == {400}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_ends_the_generation(stream: bool) -> None:
    place = Place()
    await given_up(place.app(), place.bench.engine, PATH, {"input": "hi", "stream": stream}, "a")
    assert place.bench.service.in_progress == 0
    assert len(place.store) == 0


def test_references_multiply_nothing() -> None:
    place = Place(Bench(max_request_bytes=2000))
    first = place.whole({"input": "hi"}, ["x" * 900])["output"][0]["id"]
    second = place.whole({"input": "hi"}, ["y" * 900])["output"][0]["id"]
    one, other = ({"type": "item_reference", "id": item_id} for item_id in (first, second))
    asked = {"role": "user", "content": "what?"}
    for path in (PATH, f"{PATH}/input_tokens"):
        reply = place.ask("POST", path, {"input": [one, asked, one]})
        assert (reply.status, reply.error["param"]) == (400, "input[2].id")
        reply = place.ask("POST", path, {"input": [one, other, asked]})
        assert (reply.status, reply.error["param"]) == (400, "input[1].id")
        assert "2000 bytes" in reply.error["message"]
    place.whole({"input": [other, asked]})
    assert [message["content"] for message in place.messages] == ["y" * 900, "what?"]


@pytest.mark.parametrize(
    ("path", "more"), [(PATH, {}), (PATH, {"stream": True}), (f"{PATH}/input_tokens", {}), (f"{PATH}/compact", {})]
)
def test_a_failure_has_this_apis_names_and_is_counted_once(path: str, more: dict[str, Any]) -> None:
    place = Place()
    metrics = place.bench.service.metrics
    place.bench.service.on_end = metrics.ended
    missing = place.ask("POST", path, {"input": "x", "model": "gpt", **more})
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")
    place.bench.prompts.result = PromptResult(error="'messages' are bad", param="messages")
    refused = place.ask("POST", path, {"input": "x", **more})
    assert (refused.status, refused.error["param"], refused.error["message"]) == (400, "input", "'input' are bad")
    place.bench.prompts.result = RuntimeError("secret path /x")
    broken = place.ask("POST", path, {"input": "x", **more})
    assert (broken.status, "secret" in broken.text) == (500, False)
    metrics.flush()
    counted = {
        (sample.labels["endpoint"], sample.labels["outcome"]): sample.value
        for family in metrics.collect()
        for sample in family.samples
        if sample.name == "openai_bls_requests_total"
    }
    name = path.removeprefix("/v1/").replace("/", ".")
    assert counted == {(name, "404"): 1, (name, "400"): 1, (name, "500"): 1}
