"""On every path, streamed or not, the text is what transformers' own greedy generate and decode give.

Each test asks all its questions at once, so that the engine's batches change all the time.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, product
from typing import Any

import openai
import pytest

from openai_bls.launcher.testing import RunningServer
from tests.triton import triton_client
from tests.triton.conftest import CHATS, GOLDEN, RAW, TOOL_CHATS, Golden
from tests.triton.reference import Reference
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.triton

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 1200}


def ask_all(work: Iterable[tuple[Callable[[Golden], Any], Golden]]) -> None:
    """Each golden prompt has its answer in the way that stands before it."""
    # Or the last steps would be those of one long answer.
    order = sorted(work, key=lambda item: -item[1].tokens)
    with ThreadPoolExecutor(48) as pool:
        for text, (_, golden) in zip(pool.map(lambda item: item[0](item[1]), order), order, strict=True):
            assert text == golden.answer, golden.label


def test_golden_answers_are_transformers_own(reference: Reference) -> None:
    reference.generate(GOLDEN)
    for golden in GOLDEN:
        tokens = reference.token_ids(golden)
        assert reference.decode(tokens) == golden.answer
        assert len(tokens) == golden.tokens


def test_chat_on_v1(server: RunningServer, reference: Reference) -> None:
    """All streamed, and each in one further way: whole, dropped or read slowly; every other one is still right."""
    ways = cycle(("whole", "drop", "slow"))
    plan = [(golden, way) for golden, further in zip(CHATS, ways, strict=False) for way in ("stream", further)]
    random.Random(5).shuffle(plan)

    async def one(client: openai.AsyncOpenAI, golden: Golden, way: str) -> None:
        options: dict[str, Any] = {"model": "openai_bls", "messages": golden.messages, **GREEDY}
        if way == "whole":
            answer = await client.chat.completions.create(**options)
            assert answer.choices[0].message.content == golden.answer
            assert answer.choices[0].finish_reason == golden.finish
            assert answer.usage.completion_tokens == golden.tokens
            assert answer.usage.prompt_tokens == len(reference.prompt_token_ids(golden))
            return
        stream = await client.chat.completions.create(**options, stream=True)
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if way == "drop" and len(text) > 5:
                await stream.close()
                assert golden.answer.startswith(text)
                return
            if way == "slow":
                # Lets many engine steps pass before the next read; nothing depends on how long it is.
                await asyncio.sleep(0.01)
        assert text == golden.answer

    async def everyone() -> None:
        async with openai.AsyncOpenAI(
            base_url=server.openai_url, api_key="none", max_retries=0, timeout=4 * PATIENCE_S
        ) as client:
            await asyncio.gather(*(one(client, golden, way) for golden, way in plan))

    asyncio.run(everyone())


def test_chat_on_triton(server: RunningServer) -> None:
    def body(golden: Golden) -> dict[str, Any]:
        return {"messages": json.dumps(golden.messages), **GREEDY}

    def whole(golden: Golden) -> Any:
        return triton_client.chat(server.http_url, body(golden))["choices"][0]["message"]["content"]

    def streamed(golden: Golden) -> Any:
        return triton_client.content(triton_client.chat_stream(server.http_url, body(golden)))

    def grpc(golden: Golden) -> Any:
        inputs = [triton_client.infer_input("messages", [json.dumps(m) for m in golden.messages or []], "BYTES")]
        return triton_client.content(triton_client.grpc_chat(server.grpc_url, inputs, {"stream": True, **GREEDY}))

    ask_all(zip(cycle((whole, streamed, grpc)), CHATS, strict=False))


def test_completions(server: RunningServer, client: openai.OpenAI) -> None:
    def options(golden: Golden) -> dict[str, Any]:
        return {"model": "openai_bls", "prompt": golden.raw, **GREEDY}

    def whole(golden: Golden) -> Any:
        return client.completions.create(**options(golden)).choices[0].text

    def streamed(golden: Golden) -> Any:
        return "".join(c.choices[0].text for c in client.completions.create(stream=True, **options(golden)))

    def on_triton(golden: Golden) -> Any:
        return triton_client.chat(server.http_url, options(golden))["choices"][0]["text"]

    def streamed_on_triton(golden: Golden) -> Any:
        return triton_client.content(triton_client.chat_stream(server.http_url, options(golden)))

    ask_all(product((whole, streamed, on_triton, streamed_on_triton), RAW))


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_ensembles(server: RunningServer, model: str) -> None:
    """With the fields of the guides' curl line, which end where the answer ends."""

    def body(golden: Golden) -> dict[str, Any]:
        fields = {"max_tokens": 100, "bad_words": "", "stop_words": "", "pad_id": 2, "end_id": 2}
        return {"text_input": golden.raw, **fields}

    def whole(golden: Golden) -> Any:
        return triton_client.generate(server.http_url, model, body(golden))["text_output"]

    def streamed(golden: Golden) -> Any:
        events = triton_client.generate_stream(server.http_url, model, {**body(golden), "stream": True})
        return "".join(event["text_output"] for event in events)

    ask_all(product((whole, streamed), RAW))


def test_tool_chats_without_parsing(client: openai.OpenAI, reference: Reference) -> None:
    """As token ids through the completions endpoint, the raw text with its markers comes out."""

    def ask(golden: Golden) -> Any:
        prompt = reference.prompt_token_ids(golden)
        return client.completions.create(model="openai_bls", prompt=prompt, **GREEDY).choices[0].text

    ask_all((ask, golden) for golden in TOOL_CHATS)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 8, 13])
def test_cut_at_length(client: openai.OpenAI, reference: Reference, max_tokens: int) -> None:
    """Wherever the output is cut, in the middle of a character too, both ways give the same text and `length`."""

    def ask(golden: Golden) -> tuple[str | None, str, str, str]:
        options: dict[str, Any] = {"model": "openai_bls", "messages": golden.messages, "temperature": 0}
        choice = client.chat.completions.create(max_tokens=max_tokens, **options).choices[0]
        chunks: Any = list(client.chat.completions.create(max_tokens=max_tokens, stream=True, **options))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        return choice.message.content, text, choice.finish_reason, chunks[-1].choices[0].finish_reason

    cuts = [(golden, reference.text(golden, max_tokens)) for golden in CHATS if golden.tokens > max_tokens]
    # All that are cut in the middle of a character, and some of the others.
    some = [(golden, text) for at, (golden, text) in enumerate(cuts) if at % 4 == 0 or text.endswith("\ufffd")]
    with ThreadPoolExecutor(16) as pool:
        for (_, text), found in zip(some, pool.map(lambda cut: ask(cut[0]), some), strict=True):
            assert found == (text, text, "length", "length")
