"""`encrypted_content`: what is given back is understood, and nothing else; compaction."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import CompactedResponse

from openai_bls.api.responses.compaction import QUESTION
from openai_bls.api.responses.sealing import seal, unseal
from openai_bls.core.errors import InvalidRequestError
from tests.unit.api.responses.responses_support import PATH, Place, checked

INCLUDE = {"include": ["reasoning.encrypted_content"]}


@given(st.text())
def test_there_and_back(text: str) -> None:
    assert unseal("reasoning", seal("reasoning", text), "p") == text


@given(st.text() | st.text(alphabet="obls1.ABab01-_=").map("obls1.".__add__))
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        unseal("reasoning", text, "p")
    assert (caught.value.param, caught.value.code) == ("p", "invalid_encrypted_content")


def test_what_is_changed_or_of_another_kind_is_refused() -> None:
    sealed = seal("reasoning", "hm, let me see")
    for other in (sealed[:-4], sealed[:12] + "A" + sealed[13:], sealed + "AAAA", seal("compaction", "hm, let me see")):
        with pytest.raises(InvalidRequestError):
            unseal("reasoning", other, "p")


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_comes_back(stream: bool) -> None:
    place = Place()
    body = {**INCLUDE, "store": False}
    pieces = ["<think>hm", " so</think>", "ok"]
    response = place.streamed(body, pieces)[-1]["response"] if stream else place.whole(body, pieces)
    reasoning, message = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm so"}]
    only = {"type": "reasoning", "summary": [], "encrypted_content": reasoning["encrypted_content"]}
    for item in (only, reasoning):
        place.whole({"input": [{"role": "user", "content": "hi"}, item, message, {"role": "user", "content": "go"}]})
        assert place.messages[1]["reasoning_content"] == "hm so"
    damaged = place.ask("POST", PATH, {"input": [{**only, "encrypted_content": only["encrypted_content"][:-4]}]})
    assert (damaged.status, damaged.error["code"]) == (400, "invalid_encrypted_content")
    assert damaged.error["param"] == "input[0].encrypted_content"


def test_reasoning_that_another_service_encrypted_is_left_out() -> None:
    place = Place()
    foreign = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAA"}
    response = place.whole({"input": [foreign, {"role": "user", "content": "go"}]})
    assert place.messages == [{"role": "assistant", "content": ""}, {"role": "user", "content": "go"}]
    kept = place.ask("GET", f"{PATH}/{response['id']}/input_items", query="order=asc").json()["data"][0]
    assert (kept["type"], kept["content"]) == ("reasoning", [])


def test_it_is_there_only_if_asked_for() -> None:
    place = Place()
    plain = place.whole({}, ["<think>hm</think>ok"])
    assert "encrypted_content" not in plain["output"][0]
    path = f"{PATH}/{plain['id']}"
    found = place.ask("GET", path, query="include[]=reasoning.encrypted_content").json()
    assert unseal("reasoning", found["output"][0]["encrypted_content"], "p") == "hm"
    assert place.ask("GET", path).json() == plain
    # A model that has not thought has nothing to include.
    assert [item["type"] for item in place.whole(INCLUDE)["output"]] == ["message"]


def compacted(place: Place, body: dict[str, Any], summary: str = "All is well.") -> dict[str, Any]:
    def feed() -> None:
        place.bench.engine.deliver(len(place.bench.engine.requests) - 1, f"<think>hm</think>{summary}", "stop")

    reply = place.ask("POST", f"{PATH}/compact", body, feed=feed)
    assert reply.status == 200, reply.text
    found: dict[str, Any] = reply.json()
    checked(CompactedResponse, {**found, "output": found["output"][-1:]})
    return found


def test_compaction() -> None:
    place = Place()
    items = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    found = compacted(place, {"model": "tiny", "input": items, "instructions": "be kind"})
    assert [message["role"] for message in place.messages] == ["system", "system", "user", "assistant", "user", "user"]
    assert place.messages[-1]["content"] == QUESTION
    kept = found["output"]
    assert [item["type"] for item in kept] == ["message"] * 3 + ["compaction"]
    assert [item["role"] for item in kept[:-1]] == ["developer", "user", "user"]
    assert "All is well" not in kept[-1]["encrypted_content"]
    assert found["usage"]["output_tokens"] > 0
    assert place.bench.engine.requests[-1].sampling.temperature == 0
    place.whole({"input": [*kept, {"role": "user", "content": "go on"}]})
    assert [message["role"] for message in place.messages] == ["system", "user", "user", "assistant", "user"]
    assert place.messages[3]["content"] == "Summary of the conversation so far:\n\nAll is well."
    # What is compacted again holds the earlier summary, not the earlier item.
    again = compacted(place, {"input": [*kept, {"role": "user", "content": "go on"}]}, "Still well.")
    assert [item["type"] for item in again["output"]] == ["message"] * 4 + ["compaction"]
    assert any("All is well" in message["content"] for message in place.messages)


def test_compaction_of_a_stored_conversation() -> None:
    place = Place()
    first = place.whole({"input": "one"}, ["two"])
    found = compacted(place, {"previous_response_id": first["id"]})
    assert [item["content"][0]["text"] for item in found["output"][:-1]] == ["one"]
    following = place.whole({"input": [*found["output"], {"role": "user", "content": "go on"}]})
    listed = place.ask("GET", f"{PATH}/{following['id']}/input_items", query="order=asc").json()["data"]
    assert [item["type"] for item in listed] == ["message", "compaction", "message"]
    place.whole({"input": "and?", "previous_response_id": following["id"]})
    assert "All is well" in place.messages[1]["content"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": "x", "tools": []}, "tools"),
        ({"input": "x", "image": {"context_compression": "enabled"}}, "image"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].encrypted_content"),
        ({"input": "x" * 5000}, "input"),
    ],
)
def test_compaction_refuses_by_name(body: dict[str, Any], param: str) -> None:
    reply = Place().ask("POST", f"{PATH}/compact", body)
    assert (reply.status, reply.error["param"]) == (400, param)


def test_a_model_without_a_summary_is_an_error() -> None:
    place = Place()
    reply = place.ask(
        "POST", f"{PATH}/compact", {"input": "x"}, feed=lambda: place.bench.engine.deliver(0, "<think>hm", "length")
    )
    assert (reply.status, "summary" in reply.error["message"]) == (500, True)
