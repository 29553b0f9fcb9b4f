"""OpenAI's Responses API, as the official SDK uses it."""

from __future__ import annotations

import json
from typing import Any, Literal

import httpx
import openai
import pydantic
import pytest
from openai.types.responses import ResponseFunctionToolCall

from openai_bls.launcher.testing import RunningServer
from tests.triton import conversations
from tests.triton.conftest import SHORT_CHATS, TOOL_CHATS
from tests.triton.reference import Reference

pytestmark = pytest.mark.triton

GREEDY: dict[str, Any] = {"model": "openai_bls", "temperature": 0}
QUESTION = "What is machine learning?"
PARAMETERS: Any = {**conversations.WEATHER["function"]["parameters"], "additionalProperties": False}
WEATHER: Any = {**conversations.WEATHER["function"], "type": "function", "parameters": PARAMETERS, "strict": True}


class Person(pydantic.BaseModel):
    """What structured output is parsed into."""

    name: str
    age: int
    mood: Literal["happy", "sad"]


def test_responses_are_what_the_model_says(client: openai.OpenAI, reference: Reference) -> None:
    """Whole and streamed; the items of a conversation are its messages."""
    for golden in SHORT_CHATS:
        items: Any = golden.messages
        whole = client.responses.create(**GREEDY, input=items, max_output_tokens=1200)
        assert whole.output_text == golden.answer
        assert (whole.status, whole.error, whole.incomplete_details) == ("completed", None, None)
        assert whole.usage is not None
        assert whole.usage.input_tokens == len(reference.prompt_token_ids(golden))
        assert whole.usage.output_tokens == golden.tokens
        stream = client.responses.create(**GREEDY, input=items, max_output_tokens=1200, stream=True)
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(deltas) == whole.output_text


def test_a_stream(server: RunningServer, client: openai.OpenAI) -> None:
    """The SDK's helper follows it; on the wire it has no [DONE]."""
    whole = client.responses.create(**GREEDY, input=QUESTION)
    text = ""
    numbers = []
    with client.responses.stream(**GREEDY, input=QUESTION) as stream:
        for event in stream:
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                text += event.delta
                assert event.snapshot == text
        final = stream.get_final_response()
    assert numbers == sorted(set(numbers))
    assert final.output_text == text == whole.output_text
    assert final.usage == whole.usage
    body = {**GREEDY, "input": QUESTION, "stream": True}
    response = httpx.post(f"{server.openai_url}/responses", json=body, timeout=60)
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.removesuffix("\n\n").split("\n\n")
    assert blocks[0].startswith("event: response.created\ndata: ")
    assert blocks[-1].startswith("event: response.completed\ndata: ")


def test_structured_output(client: openai.OpenAI) -> None:
    """The demo model knows nothing of it: the grammar makes it an object of that kind."""
    parsed = client.responses.parse(**GREEDY, input="Tell me of Alice.", text_format=Person, max_output_tokens=200)
    assert isinstance(parsed.output_parsed, Person)
    with client.responses.stream(
        **GREEDY, input="Tell me of Alice.", text_format=Person, max_output_tokens=200
    ) as stream:
        final = stream.get_final_response()
    assert final.output_parsed == parsed.output_parsed


def _call(response: Any) -> ResponseFunctionToolCall:
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert isinstance(call, ResponseFunctionToolCall)
    return call


def test_a_tool_round_trip(client: openai.OpenAI) -> None:
    """By hand, with all items sent again, and by previous_response_id: the model sees the same."""
    options: Any = {**GREEDY, "tools": [WEATHER], "max_output_tokens": 100}
    items: Any = [{"role": "user", "content": "What's the weather in Paris?"}]
    counted = client.responses.input_tokens.count(model="openai_bls", input=items, tools=[WEATHER])
    first = client.responses.create(**options, input=items, tool_choice="required")
    call = _call(first)
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    assert first.status == "completed"
    assert first.usage is not None
    assert first.usage.input_tokens == counted.input_tokens
    output: Any = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": '{"temperature": 21, "condition": "sunny"}',
    }
    every: Any = [*items, *first.output, output]
    by_hand = client.responses.create(**options, input=every)
    assert "21" in by_hand.output_text
    continued = client.responses.create(**options, input=[output], previous_response_id=first.id)
    assert continued.output_text == by_hand.output_text
    assert continued.usage is not None
    assert by_hand.usage is not None
    assert continued.usage.input_tokens == by_hand.usage.input_tokens


def test_streamed_calls(client: openai.OpenAI) -> None:
    """As the whole response has them, and as a chat completion has them."""
    seen = 0
    for golden in TOOL_CHATS[:6]:
        tools: Any = [{"type": "function", "strict": None, **tool["function"]} for tool in golden.tools or []]
        options: Any = {**GREEDY, "input": golden.messages, "tools": tools, "max_output_tokens": 256}
        whole = client.responses.create(**options)
        calls = [(item.name, item.arguments) for item in whole.output if item.type == "function_call"]
        with client.responses.stream(**options) as stream:
            deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
            final = stream.get_final_response()
        assert [(item.name, item.arguments) for item in final.output if item.type == "function_call"] == calls
        assert "".join(deltas) == "".join(arguments for _, arguments in calls)
        assert final.output_text == whole.output_text
        seen += len(calls)
    assert seen > 0


def test_previous_response_id(client: openai.OpenAI) -> None:
    first = client.responses.create(**GREEDY, input="My name is Alice.")
    second = client.responses.create(**GREEDY, input="What is my name?", previous_response_id=first.id)
    assert "Alice" in second.output_text
    listed = [item.type for item in client.responses.input_items.list(second.id, order="asc", limit=2)]
    assert listed == ["message", "message", "message"]
    newest = next(iter(client.responses.input_items.list(second.id)))
    assert newest.type == "message"
    assert newest.content[0].type == "input_text"
    assert newest.content[0].text == "What is my name?"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**GREEDY, input="x", previous_response_id="resp_0")
    assert caught.value.code == "previous_response_not_found"


def test_background(client: openai.OpenAI) -> None:
    """Polled, streamed again, cancelled."""
    whole = client.responses.create(**GREEDY, input=QUESTION)
    begun = client.responses.create(**GREEDY, input=QUESTION, background=True)
    assert begun.status in ("queued", "in_progress", "completed")
    while begun.status in ("queued", "in_progress"):
        begun = client.responses.retrieve(begun.id)
    assert (begun.status, begun.output_text) == ("completed", whole.output_text)
    with client.responses.create(**GREEDY, input=QUESTION, background=True, stream=True) as stream:
        first = next(iter(stream))
    assert first.type == "response.created"
    followed = client.responses.retrieve(first.response.id, stream=True, starting_after=first.sequence_number)
    events = list(followed)
    assert [event.sequence_number for event in events] == list(range(1, len(events) + 1))
    assert (events[0].type, events[-1].type) == ("response.queued", "response.completed")
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    endless: Any = {"ignore_eos": True}
    running = client.responses.create(**GREEDY, input=QUESTION, background=True, extra_body=endless)
    cancelled = client.responses.cancel(running.id)
    assert cancelled.status == "cancelled"
    assert client.responses.retrieve(running.id).to_dict() == cancelled.to_dict()


def test_compaction_and_encrypted_content(client: openai.OpenAI) -> None:
    """The demo model writes poor summaries, but the items go round."""
    first = client.responses.create(**GREEDY, input="My name is Alice.", include=["reasoning.encrypted_content"])
    compacted = client.responses.compact(model="openai_bls", previous_response_id=first.id)
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    # The client's type of a message has an assistant's text alone, and here is the user's, as in OpenAI's reference.
    kept = [item.to_dict(warnings=False) for item in compacted.output]
    assert kept[0]["content"] == [{"type": "input_text", "text": "My name is Alice."}]
    items: Any = [*kept, {"role": "user", "content": "What is my name?"}]
    assert client.responses.create(**GREEDY, input=items).status == "completed"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**GREEDY, input=[{"type": "compaction", "encrypted_content": "x"}, *items])
    assert caught.value.code == "invalid_encrypted_content"


def test_a_conversation(client: openai.OpenAI) -> None:
    """What a conversation holds is what the model sees, whoever put it there."""
    earlier: Any = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "A way to learn."}]
    last = "What is a transformer?"
    items: Any = [*earlier, {"role": "user", "content": last}]
    expected = client.responses.create(**GREEDY, input=items, max_output_tokens=32)
    conversation = client.conversations.create(items=earlier, metadata={"topic": "chat"})
    answered = client.responses.create(**GREEDY, conversation=conversation.id, input=last, max_output_tokens=32)
    assert answered.output_text == expected.output_text
    assert answered.conversation is not None
    assert answered.conversation.id == conversation.id
    assert answered.usage is not None
    assert expected.usage is not None
    assert answered.usage.input_tokens == expected.usage.input_tokens
    # Page by page.
    assert len(list(client.conversations.items.list(conversation.id, order="asc", limit=1))) == 4
    client.conversations.items.create(conversation.id, items=[{"role": "user", "content": QUESTION}])
    (newest,) = client.conversations.items.list(conversation.id, limit=1).data
    assert newest.id is not None
    client.conversations.items.retrieve(newest.id, conversation_id=conversation.id)
    client.conversations.items.delete(newest.id, conversation_id=conversation.id)
    assert client.conversations.update(conversation.id, metadata={"topic": "done"}).metadata == {"topic": "done"}
    assert client.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.responses.create(**GREEDY, conversation=conversation.id, input=QUESTION)
