"""The law: on every path, streamed or not, the text is what transformers' own greedy generate and decode give."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import openai
import pytest

from openai_bls.launcher.testing import RunningServer
from tests.triton import triton_client
from tests.triton.conftest import CHATS, GOLDEN, RAW, TOOL_CHATS, Golden, Reference, by_label

pytestmark = pytest.mark.triton

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 1200}


def sdk_text(answer: Any) -> str:
    text: str = answer.choices[0].message.content
    return text


def test_golden_answers_are_transformers_own(reference: Reference) -> None:
    for golden in GOLDEN:
        assert reference.text(golden) == golden.answer


@by_label(CHATS)
def test_chat_on_v1(client: openai.OpenAI, reference: Reference, golden: Golden) -> None:
    messages: Any = golden.messages
    expected = reference.text(golden)
    answer = client.chat.completions.create(model="openai_bls", messages=messages, **GREEDY)
    assert sdk_text(answer) == expected
    assert answer.choices[0].finish_reason == golden.finish
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(reference.token_ids(golden))
    assert answer.usage.prompt_tokens == len(reference.prompt_token_ids(golden))
    stream = client.chat.completions.create(model="openai_bls", messages=messages, stream=True, **GREEDY)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == expected


@by_label(CHATS)
def test_chat_on_triton(server: RunningServer, reference: Reference, golden: Golden) -> None:
    expected = reference.text(golden)
    body = {"messages": json.dumps(golden.messages), **GREEDY}
    assert triton_client.chat(server.http_url, body)["choices"][0]["message"]["content"] == expected
    assert triton_client.content(triton_client.chat_stream(server.http_url, body)) == expected
    inputs = [triton_client.infer_input("messages", [json.dumps(m) for m in golden.messages or []], "BYTES")]
    chunks = triton_client.grpc_chat(server.grpc_url, inputs, {"stream": True, **GREEDY})
    assert triton_client.content(chunks) == expected


@by_label(RAW)
def test_completions(server: RunningServer, client: openai.OpenAI, reference: Reference, golden: Golden) -> None:
    prompt = golden.raw or ""
    expected = reference.text(golden)
    assert client.completions.create(model="openai_bls", prompt=prompt, **GREEDY).choices[0].text == expected
    stream = client.completions.create(model="openai_bls", prompt=prompt, stream=True, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in stream) == expected
    body = {"prompt": prompt, **GREEDY}
    assert triton_client.chat(server.http_url, body)["choices"][0]["text"] == expected
    assert triton_client.content(triton_client.chat_stream(server.http_url, body)) == expected


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
@by_label(RAW)
def test_ensembles(server: RunningServer, reference: Reference, golden: Golden, model: str) -> None:
    body = {"text_input": golden.raw, "max_tokens": 1200, "bad_words": "", "stop_words": ""}
    expected = reference.text(golden)
    assert triton_client.generate(server.http_url, model, body)["text_output"] == expected
    events = triton_client.generate_stream(server.http_url, model, {**body, "stream": True})
    assert "".join(event["text_output"] for event in events) == expected


@by_label(TOOL_CHATS)
def test_tool_chats_without_parsing(client: openai.OpenAI, reference: Reference, golden: Golden) -> None:
    """As token ids through the completions endpoint, the raw text with its markers comes out."""
    prompt = reference.prompt_token_ids(golden)
    answer = client.completions.create(model="openai_bls", prompt=prompt, **GREEDY)
    assert answer.choices[0].text == reference.text(golden)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 8, 13])
def test_cut_at_length(client: openai.OpenAI, reference: Reference, max_tokens: int) -> None:
    """Wherever the output is cut, in the middle of a character too, both ways give the same text and `length`."""
    for golden in CHATS:
        if len(reference.token_ids(golden)) <= max_tokens:
            continue
        messages: Any = golden.messages
        options: dict[str, Any] = {"model": "openai_bls", "temperature": 0, "max_tokens": max_tokens}
        answer = client.chat.completions.create(messages=messages, **options)
        assert sdk_text(answer) == reference.text(golden, max_tokens)
        assert answer.choices[0].finish_reason == "length"
        chunks = list(client.chat.completions.create(messages=messages, stream=True, **options))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == sdk_text(answer)
        assert chunks[-1].choices[0].finish_reason == "length"


def test_under_load_with_cancels_and_slow_readers(server: RunningServer, reference: Reference) -> None:
    """Many streams at once, some dropped, some read slowly: every other one is still exactly right."""
    chooser = random.Random(5)
    plan = [(golden, chooser.choice(["stream", "whole", "drop", "slow"])) for golden in CHATS * 4]
    chooser.shuffle(plan)

    async def one(client: openai.AsyncOpenAI, golden: Golden, way: str) -> None:
        messages: Any = golden.messages
        expected = reference.text(golden)
        if way == "whole":
            answer = await client.chat.completions.create(model="openai_bls", messages=messages, **GREEDY)
            assert sdk_text(answer) == expected
            return
        stream = await client.chat.completions.create(model="openai_bls", messages=messages, stream=True, **GREEDY)
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if way == "drop" and len(text) > 5:
                await stream.close()
                assert expected.startswith(text)
                return
            if way == "slow":
                # Lets many engine steps pass before the next read; nothing depends on how long it is.
                await asyncio.sleep(0.01)
        assert text == expected

    async def everyone() -> None:
        async with openai.AsyncOpenAI(base_url=server.openai_url, api_key="none", max_retries=0) as client:
            await asyncio.gather(*(one(client, golden, way) for golden, way in plan))

    asyncio.run(everyone())
