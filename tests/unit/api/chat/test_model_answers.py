"""What chat models answer: checked, counted, and cut into chunks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk

from openai_bls.core.errors import ModelAnswerError
from openai_bls.core.usage import Usage
from tests.unit.api.chat.chat_model_support import (
    ANSWER,
    BODY,
    CHOICE,
    PATH,
    STREAM,
    USAGE,
    bench_of,
    error_of,
    streamed,
)
from tests.unit.api.guard_support import as_response
from tests.unit.api.http_support import asked
from tests.unit.core_support import events


def chunks(whole: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """The stream that a whole answer is cut into."""
    found: list[dict[str, Any]] = streamed(asked(bench_of(whole), PATH, {**STREAM, **fields}))
    for chunk in found:
        ChatCompletionChunk.model_validate(chunk)
    return found


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"data: {}", b'{"choices": ["\xff"]}', b"[" * 100_000, b'["choices"]'),
        *({"choice": []}, {"choices": {}}),
        *({"choices": [], "usage": {"prompt_tokens": value}} for value in (-5e300, -1)),
        *({"choices": [], "usage": usage} for usage in ({"total_tokens": 10**30}, {"completion_tokens": "3"}, [3])),
    ],
)
def test_what_is_no_answer(answer: Any) -> None:
    for body in (BODY, STREAM):
        assert error_of(asked(bench_of(answer), PATH, body)) == (502, ModelAnswerError("rag", "").code)


@pytest.mark.parametrize("choice", [7, {}, {"message": None}, {"message": "x"}])
def test_a_choice_without_a_message_cannot_be_streamed(choice: Any) -> None:
    assert error_of(asked(bench_of({"choices": [choice]}), PATH, STREAM))[0] == 502


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
    answered = asked(bench_of({"error": {"message": "no", **error}}), PATH, BODY)
    assert answered.status == status
    expected = {"message": "no", "type": "server_error", "param": None, "code": None} | error
    assert answered.json() == {"error": expected}


def test_an_error_that_is_a_sentence_and_one_that_is_null() -> None:
    assert asked(bench_of({"error": "no index"}), PATH, BODY).json()["error"]["message"] == "no index"
    assert asked(bench_of({"error": None, "choices": []}), PATH, BODY).status == 200


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
        (None, Usage.of(0, 0)),
    ],
)
def test_usage_and_finish_reasons_are_counted(given: Any, expected: Usage) -> None:
    """Finish reasons that the metrics do not know are not."""
    odd = [{**CHOICE, "finish_reason": reason} for reason in ("content_filter", ["x"])]
    bench = bench_of({**ANSWER, "choices": [CHOICE, *odd, {}, 7], "usage": given})
    assert asked(bench, PATH, BODY).status == 200
    (record,) = bench.records
    assert (record.usage, record.finish_reasons) == (expected, ["stop"])


def test_chunks_of_a_whole_answer() -> None:
    role, content, finish = chunks({**ANSWER, "system_fingerprint": "fp", "retrieved": ["a"]})
    head = {"id": "x", "object": "chat.completion.chunk", "created": 7, "model": "m", "system_fingerprint": "fp"}
    for chunk in (role, content, finish):
        assert {**head, "retrieved": ["a"], "choices": chunk["choices"]} == chunk
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert content["choices"][0] == {"index": 0, "delta": {"content": "Paris"}, "logprobs": None, "finish_reason": None}
    assert finish["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    *others, last = chunks(ANSWER, stream_options={"include_usage": True})
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
    choice = {**CHOICE, "message": message, "finish_reason": "tool_calls", "score": 1}
    _, delta, finish = chunks({**ANSWER, "choices": [choice]})
    assert delta["choices"][0]["delta"] == {"tool_calls": [{"index": 0, **call}], "citations": [1]}
    assert (finish["choices"][0]["finish_reason"], finish["choices"][0]["score"]) == ("tool_calls", 1)


def test_every_choice_has_its_chunks() -> None:
    logprobs: dict[str, Any] = {"content": []}
    other = {**CHOICE, "index": 1, "logprobs": logprobs, "message": {"content": "b"}}
    found = chunks({**ANSWER, "choices": [CHOICE, other]})
    assert [chunk["choices"][0]["index"] for chunk in found] == [0, 0, 0, 1, 1, 1]
    assert [chunk["choices"][0]["logprobs"] for chunk in found[3:]] == [None, logprobs, None]


def test_chunks_go_out_as_they_are_written_on_one_line() -> None:
    texts = [b'{"choices": [],  "a": 1.0}', b'{\n "choices": [],\r\n "b": "\\n"\n}']
    answered = asked(bench_of(chunks=lambda _: [as_response(text) for text in texts]), PATH, STREAM)
    first, second, _ = events(answered.body)
    assert first.encode() == texts[0]
    assert json.loads(second) == json.loads(texts[1])
