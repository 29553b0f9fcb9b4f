from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk

from openai_bls.api.chat import model_answers
from openai_bls.core.errors import ApiError
from openai_bls.core.usage import Usage

MESSAGE: dict[str, Any] = {"role": "assistant", "content": "Paris"}
CHOICE: dict[str, Any] = {"index": 0, "message": MESSAGE, "logprobs": None, "finish_reason": "stop"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def answer(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "x", "object": "chat.completion", "created": 7, "model": "m", "choices": list(choices), **more}


def chunks(whole: dict[str, Any], *, include_usage: bool = False) -> list[dict[str, Any]]:
    found = [json.loads(chunk) for chunk in model_answers.chunks("rag", whole, include_usage=include_usage)]
    for chunk in found:
        ChatCompletionChunk.model_validate(chunk)
    return found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "The model 'rag' answered with something that is not JSON."),
        (b"data: {}", "The model 'rag' answered with something that is not JSON."),
        (b'{"choices": ["\xff"]}', "The model 'rag' answered with something that is not JSON."),
        (b"[" * 100_000, "The model 'rag' answered with something that is not JSON."),
        (b'["choices"]', "The model 'rag' answered with JSON that is no object."),
        (b'{"choice": []}', "The model 'rag' answered with an object without 'choices'."),
        *(
            (
                json.dumps({"choices": [], "usage": usage}).encode(),
                f"The model 'rag' answered with a 'usage' that cannot be one: {why}.",
            )
            for usage, why in (
                ({"prompt_tokens": -5e300}, "Expected `int | null`, got `float` - at `$.prompt_tokens`"),
                ({"prompt_tokens": -1}, "Expected `int` >= 0 - at `$.prompt_tokens`"),
                ({"total_tokens": 10**30}, "Expected `int` <= 9007199254740992 - at `$.total_tokens`"),
                ({"completion_tokens": "3"}, "Expected `int | null`, got `str` - at `$.completion_tokens`"),
                ([3], "Expected `object | null`, got `array`"),
            )
        ),
        (b'{"choices": {}}', "The model 'rag' answered with an object without 'choices'."),
    ],
)
def test_what_is_no_answer(text: bytes, message: str) -> None:
    with pytest.raises(ApiError) as raised:
        model_answers.checked("rag", text)
    assert (raised.value.status, raised.value.message) == (502, message)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"type": "invalid_request_error"}, 400),
        ({"type": "authentication_error"}, 401),
        ({"type": "permission_error"}, 403),
        ({"type": "not_found_error"}, 404),
        ({"type": "rate_limit_error"}, 429),
        ({"type": "overloaded_error"}, 503),
        ({"type": "server_error"}, 500),
        ({"type": ["x"]}, 500),
        ({}, 500),
        ({"code": 418}, 418),
        ({"type": "invalid_request_error", "code": "no_such_index"}, 400),
        ({"status": 404, "code": 418}, 404),
        # No status of an error.
        ({"code": 200}, 500),
        ({"code": True}, 500),
        ({"code": 7}, 500),
    ],
)
def test_errors_of_a_model(error: dict[str, Any], status: int) -> None:
    with pytest.raises(ApiError) as raised:
        model_answers.checked("rag", json.dumps({"error": {"message": "no", **error}}).encode())
    assert raised.value.status == status
    assert raised.value.body() == {
        "error": {"message": "no", "type": "server_error", "param": None, "code": None} | error
    }


def test_an_error_that_is_a_sentence() -> None:
    with pytest.raises(ApiError, match="no index") as raised:
        model_answers.checked("rag", b'{"error": "no index"}')
    assert raised.value.body()["error"]["message"] == "no index"


def test_an_error_that_is_null_is_none() -> None:
    assert model_answers.checked("rag", b'{"error": null, "choices": []}')["choices"] == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (USAGE, Usage.of(3, 2)),
        ({"prompt_tokens": 3}, Usage.of(3, 0)),
        (
            {
                **USAGE,
                "prompt_tokens_details": {"cached_tokens": 1, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            Usage.of(3, 2, cached=1, reasoning=2),
        ),
        ({**USAGE, "prompt_tokens_details": None}, Usage.of(3, 2)),
        (None, None),
    ],
)
def test_usage(given: Any, expected: Usage | None) -> None:
    assert model_answers.usage({"usage": given}) == expected


def test_finish_reasons_are_those_that_are_counted() -> None:
    choices = [CHOICE, {**CHOICE, "finish_reason": "content_filter"}, {**CHOICE, "finish_reason": ["x"]}, {}, 7]
    assert list(model_answers.finish_reasons({"choices": choices})) == ["stop"]


def test_chunks_of_a_whole_answer() -> None:
    role, content, finish = chunks(answer(CHOICE, usage=USAGE, system_fingerprint="fp", retrieved=["a"]))
    head = {"id": "x", "object": "chat.completion.chunk", "created": 7, "model": "m", "system_fingerprint": "fp"}
    for chunk in (role, content, finish):
        assert {**head, "retrieved": ["a"], "choices": chunk["choices"]} == chunk
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert content["choices"][0] == {"index": 0, "delta": {"content": "Paris"}, "logprobs": None, "finish_reason": None}
    assert finish["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}


def test_usage_comes_in_a_chunk_of_its_own() -> None:
    *others, last = chunks(answer(CHOICE, usage=USAGE), include_usage=True)
    assert [chunk["usage"] for chunk in others] == [None] * 3
    assert (last["choices"], last["usage"]) == ([], USAGE)


def test_what_a_model_leaves_out_is_filled_in() -> None:
    for chunk in chunks({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}):
        assert chunk["id"].startswith("chatcmpl-")
        assert (chunk["model"], chunk["object"]) == ("rag", "chat.completion.chunk")
        assert chunk["choices"][0]["index"] == 0


def test_tool_calls_get_an_index_and_further_fields_stay() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call], "citations": [1]}
    _, delta, finish = chunks(answer({**CHOICE, "message": message, "finish_reason": "tool_calls", "score": 1}))
    assert delta["choices"][0]["delta"] == {"tool_calls": [{"index": 0, **call}], "citations": [1]}
    assert (finish["choices"][0]["finish_reason"], finish["choices"][0]["score"]) == ("tool_calls", 1)


def test_every_choice_has_its_chunks() -> None:
    logprobs: dict[str, Any] = {"content": []}
    found = chunks(answer(CHOICE, {**CHOICE, "index": 1, "logprobs": logprobs, "message": {"content": "b"}}))
    assert [chunk["choices"][0]["index"] for chunk in found] == [0, 0, 0, 1, 1, 1]
    assert [chunk["choices"][0]["logprobs"] for chunk in found[3:]] == [None, logprobs, None]


@pytest.mark.parametrize("choice", [7, {}, {"message": None}, {"message": "x"}])
def test_a_choice_without_a_message(choice: Any) -> None:
    with pytest.raises(ApiError, match="a choice without 'message'"):
        chunks({"choices": [choice]})
