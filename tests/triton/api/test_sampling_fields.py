"""Fields that change which tokens are drawn, against the same changes made to transformers' own scores."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from openai_bls.launcher.testing import RunningServer
from tests.triton.conftest import CHATS
from tests.triton.conversations import QUESTION
from tests.triton.reference import Reference

pytestmark = pytest.mark.triton
SHORT = 40


def ask(client: openai.OpenAI, messages: Any, **options: Any) -> str:
    """The greedy answer."""
    extra = {name: options.pop(name) for name in ("repetition_penalty", "bad_words", "min_tokens") if name in options}
    answer: Any = client.chat.completions.create(
        model="openai_bls", messages=messages, temperature=0, max_tokens=SHORT, extra_body=extra, **options
    )
    content: str = answer.choices[0].message.content
    return content


def test_changed_scores(client: openai.OpenAI, reference: Reference) -> None:
    """All that changes them, at once; the engine's unit tests have each by itself."""
    prompt = reference.chat(QUESTION)
    whole = ask(client, QUESTION)
    (first, *_), (wanted,) = reference.ids(whole), reference.ids(" data")

    def change(row: Any, output: list[int]) -> None:
        row[first] -= 100
        row[wanted] += 9
        for token_id in {*prompt, *output}:
            row[token_id] = row[token_id] / 1.3 if row[token_id] > 0 else row[token_id] * 1.3
        for token_id in set(output):
            row[token_id] -= 0.5 + 0.25 * output.count(token_id)
        if len(output) < 30:
            row[list(reference.ends)] = float("-inf")

    bias = {str(first): -100, str(wanted): 9}
    fields: dict[str, Any] = {"presence_penalty": 0.5, "frequency_penalty": 0.25, "logit_bias": bias}
    changed = ask(client, QUESTION, repetition_penalty=1.3, min_tokens=30, **fields)
    assert changed == reference.decode(reference.greedy(prompt, SHORT, change))
    assert not whole.startswith(changed[:5])
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, QUESTION, min_tokens=SHORT + 1)
    assert caught.value.param == "min_tokens"


def test_bad_words(client: openai.OpenAI) -> None:
    whole = ask(client, QUESTION)
    for words in (["computers"], ["learn from data", "make"], ["learning is"]):
        cut = min(whole.index(word) for word in words)
        text = ask(client, QUESTION, bad_words=words)
        assert not any(word in text for word in words)
        # Up to the word, whose first tokens may stand, nothing changes.
        assert text.startswith(whole[:cut].rstrip())


def test_a_seed_gives_the_same_alone_and_in_a_crowd(server: RunningServer) -> None:
    """Beside other requests, sampled and greedy, long and short, none of which changes the others."""
    options: dict[str, Any] = {"model": "openai_bls", "temperature": 2, "top_p": 1, "max_tokens": 30}
    extra: dict[str, Any] = {"top_k": -1, "ignore_eos": True}

    async def sample(client: openai.AsyncOpenAI, seed: int | None) -> str:
        answer: openai.types.Completion = await client.completions.create(
            prompt="zyx", seed=seed, extra_body=extra, **options
        )
        return answer.choices[0].text

    async def greedy(client: openai.AsyncOpenAI, messages: Any) -> str | None:
        answer = await client.chat.completions.create(
            model="openai_bls", messages=messages, temperature=0, max_tokens=1200
        )
        return answer.choices[0].message.content

    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=server.openai_url, api_key="none", max_retries=0) as client:
            alone = [await sample(client, seed) for seed in range(4)]
            assert len(set(alone)) == 4
            chats = CHATS[:12]
            *sampled, _, _ = crowd = await asyncio.gather(
                *(sample(client, seed) for seed in range(4)),
                *(greedy(client, golden.messages) for golden in chats),
                *(sample(client, seed) for seed in range(4)),
                sample(client, None),
                sample(client, None),
            )
            assert sampled[:4] == sampled[-4:] == alone
            assert sampled[4:-4] == [golden.answer for golden in chats]
            assert crowd[-1] != crowd[-2]

    asyncio.run(run())
