"""Fields that change which tokens are drawn, against the same changes made to transformers' own scores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest

from openai_bls.launcher.testing import RunningServer
from tests.triton.conftest import CHATS
from tests.triton.conversations import QUESTION
from tests.triton.reference import Change, Reference

pytestmark = pytest.mark.triton

COUNT: Any = [{"role": "user", "content": "Count from 1 to 20"}]
SUM: Any = [{"role": "user", "content": "What is 2+2?"}]
SHORT = 40


def ask(client: openai.OpenAI, messages: Any, **options: Any) -> str:
    """The greedy answer."""
    extra = {name: options.pop(name) for name in ("repetition_penalty", "bad_words", "min_tokens") if name in options}
    answer: Any = client.chat.completions.create(
        model="openai_bls", messages=messages, temperature=0, max_tokens=SHORT, extra_body=extra, **options
    )
    content: str = answer.choices[0].message.content
    return content


def once(penalty: float) -> Change:
    """Taken once from each token that the output has."""

    def change(row: Any, output: list[int]) -> None:
        for token_id in set(output):
            row[token_id] -= penalty

    return change


def each_time(penalty: float) -> Change:
    """Taken from a token for each time that the output has it."""

    def change(row: Any, output: list[int]) -> None:
        for token_id in output:
            row[token_id] -= penalty

    return change


def repetition(penalty: float, prompt: list[int]) -> Change:
    """Scores of what the prompt or the output has move away from above."""

    def change(row: Any, output: list[int]) -> None:
        for token_id in {*prompt, *output}:
            row[token_id] = row[token_id] / penalty if row[token_id] > 0 else row[token_id] * penalty

    return change


@pytest.mark.parametrize("penalty", [2.0, -2.0])
@pytest.mark.parametrize(("name", "made"), [("presence_penalty", once), ("frequency_penalty", each_time)])
def test_presence_and_frequency_penalty(
    client: openai.OpenAI, reference: Reference, name: str, made: Callable[[float], Change], penalty: float
) -> None:
    """After a prompt of which the model knows nothing, or it would not care."""
    prompt = "no no"
    penalize = made(penalty)

    def change(row: Any, output: list[int]) -> None:
        penalize(row, output)
        row[list(reference.ends)] = float("-inf")

    options: dict[str, Any] = {"model": "openai_bls", "temperature": 0, "max_tokens": SHORT}
    extra = {"min_tokens": SHORT}
    answer = client.completions.create(prompt=prompt, extra_body={**extra, name: penalty}, **options)
    assert answer.choices[0].text == reference.decode(reference.greedy(reference.ids(prompt), SHORT, change))
    unchanged = client.completions.create(prompt=prompt, extra_body=extra, **options)
    assert answer.choices[0].text != unchanged.choices[0].text


@pytest.mark.parametrize("penalty", [1.3, 0.8])
def test_repetition_penalty(client: openai.OpenAI, reference: Reference, penalty: float) -> None:
    prompt = reference.chat(COUNT)
    expected = reference.decode(reference.greedy(prompt, SHORT, repetition(penalty, prompt)))
    assert ask(client, COUNT, repetition_penalty=penalty) == expected


def test_logit_bias(client: openai.OpenAI, reference: Reference) -> None:
    whole = ask(client, QUESTION)
    (first, *_) = reference.ids(whole)
    (wanted,) = reference.ids(" data")

    def change(row: Any, output: list[int]) -> None:
        row[first] -= 100
        row[wanted] += 9

    expected = reference.decode(reference.greedy(reference.chat(QUESTION), SHORT, change))
    biased = ask(client, QUESTION, logit_bias={str(first): -100, str(wanted): 9})
    assert biased == expected
    assert not biased.startswith(reference.decode([first]))
    # 100 leaves nothing else.
    assert ask(client, QUESTION, logit_bias={str(wanted): 100}) == " data" * SHORT


def test_min_tokens(client: openai.OpenAI, reference: Reference) -> None:
    def change(row: Any, output: list[int]) -> None:
        if len(output) < 25:
            row[list(reference.ends)] = float("-inf")

    expected = reference.greedy(reference.chat(SUM), SHORT, change)
    assert len(expected) >= 25
    answer = client.chat.completions.create(
        model="openai_bls", messages=SUM, temperature=0, max_tokens=SHORT, extra_body={"min_tokens": 25}
    )
    assert answer.choices[0].message.content == reference.decode(expected)
    assert answer.usage is not None
    assert answer.usage.completion_tokens >= 25
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, SUM, min_tokens=SHORT + 1)
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
