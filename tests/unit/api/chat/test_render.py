"""The render endpoints give what the engine would get, in vLLM's form, and refuse what a generation refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.pictures import data_uri, picture
from tests.unit.api.http_support import asked, refused
from tests.unit.api.responses.responses_support import Place
from tests.unit.core_support import Bench, engine_info, token_ids

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi 你好"}]
# `GenerateRequest` of vLLM 0.26, dumped.
FIELDS = {
    *("request_id", "token_ids", "assistant_tokens_mask", "token_offsets", "features", "sampling_params", "model"),
    *("stream", "stream_options", "cache_salt", "priority", "kv_transfer_params", "ec_transfer_params"),
}


def rendered(bench: Bench, path: str, **body: Any) -> Any:
    answer = asked(bench, f"{path}/render", body)
    assert answer.status == 200, answer.body
    return answer.json()


def test_a_chat_is_what_the_engine_gets() -> None:
    bench = Bench()
    body: dict[str, Any] = {"messages": USER, "max_tokens": 5, "temperature": 0.25, "stop": "x", "priority": -3}
    answer = rendered(bench, CHAT, model="tiny", **body)
    assert bench.engine.requests == []
    asked(bench, CHAT, body, feed=lambda: bench.engine.deliver(0, "a", "stop"))
    (given,) = bench.engine.requests
    assert set(answer) == FIELDS
    assert answer["request_id"].startswith("chatcmpl-")
    assert answer["token_ids"] == given.prompt_token_ids
    # vLLM leaves out what is at its default.
    assert answer["sampling_params"] == {"temperature": 0.25, "max_tokens": 5, "stop": ["x"]}
    assert (answer["model"], answer["priority"], answer["stream"], answer["stream_options"]) == (
        "tiny",
        -3,
        False,
        None,
    )


def test_each_prompt_of_a_completion() -> None:
    options = {"include_usage": True}
    answer = rendered(Bench(), COMPLETION, prompt=["ab", "c"], stream=True, stream_options=options, logit_bias={"3": 2})
    assert [one["token_ids"] for one in answer] == [token_ids("ab"), token_ids("c")]
    assert [one["request_id"].rpartition("-")[2] for one in answer] == ["0", "1"]
    assert all(one["stream_options"] == {"include_usage": True, "continuous_usage_stats": False} for one in answer)
    # 16 is vLLM's default too.
    assert [one["sampling_params"] for one in answer] == [{"logit_bias": {"3": 2.0}}] * 2
    (only,) = rendered(Bench(), COMPLETION, prompt=[7, 8], max_tokens=None)
    assert only["token_ids"] == [7, 8]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hi 你好", "max_output_tokens": 5, "temperature": 0.25, "store": False}),
        ("/v1/messages", {"messages": USER, "max_tokens": 5, "temperature": 0.25, "model": "tiny"}),
    ],
)
def test_responses_and_messages_are_what_the_engine_gets(path: str, body: dict[str, Any]) -> None:
    bench = Bench()
    answer = rendered(bench, path, **body)
    assert bench.engine.requests == []
    asked(bench, path, body, feed=lambda: bench.engine.deliver(0, "a", "stop"))
    (given,) = bench.engine.requests
    assert set(answer) == FIELDS
    assert answer["token_ids"] == given.prompt_token_ids
    assert answer["sampling_params"] == {"temperature": 0.25, "max_tokens": 5}


def test_a_response_is_rendered_with_the_one_before_it() -> None:
    place = Place()
    body = {"input": "d", "previous_response_id": place.whole({"input": "ab"}, ["c"])["id"]}
    answer = place.ask("POST", "/v1/responses/render", body).json()
    place.whole(body)
    assert answer["token_ids"] == place.bench.engine.requests[-1].prompt_token_ids


def test_a_format_is_a_structural_tag() -> None:
    answer = rendered(Bench(), CHAT, messages=USER, guided_regex="a+")
    tag = json.loads(answer["sampling_params"]["structured_outputs"]["structural_tag"])
    assert tag == {"type": "structural_tag", "format": {"type": "regex", "pattern": "a+"}}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": USER, "use_beam_search": True}, "use_beam_search"),
        (CHAT, {"messages": USER, "return_hidden_states": True}, "return_hidden_states"),
        (CHAT, {"messages": USER, "what": 1}, "what"),
        (COMPLETION, {"prompt": "a" * 2000}, "prompt"),
        (COMPLETION, {"prompt": [10**9]}, "prompt"),
        (COMPLETION, {"prompt": "a", "model": "unknown"}, "model"),
        ("/v1/responses", {"input": "a", "what": 1}, "what"),
        ("/v1/responses", {"input": "a", "temperature": 9}, "temperature"),
    ],
)
def test_what_a_generation_refuses_is_refused(path: str, body: dict[str, Any], param: str) -> None:
    assert refused(Bench(), f"{path}/render", body)[1] == param


def test_images_are_refused_by_name() -> None:
    image = {"type": "image_url", "image_url": {"url": data_uri(picture())}}
    bench = Bench(engine_info(input_modalities=("text", "image"), max_images=3))
    status, param, code = refused(bench, f"{CHAT}/render", {"messages": [{"role": "user", "content": [image]}]})
    assert (status, code) == (400, "unsupported_content")
    assert param is not None
    assert param.startswith("messages[0].content[0]")
