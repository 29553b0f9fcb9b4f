"""The official `openai` SDK, unmodified, against /v1."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from openai_bls.launcher.testing import RunningServer
from tests.triton.conftest import ANSWERED, TOOL_CHATS
from tests.triton.conversations import QUESTION
from tests.triton.reference import Reference

pytestmark = pytest.mark.triton


def test_stream_shape(server: RunningServer) -> None:
    """Byte by byte what the rules of good servers say."""
    body = {
        "model": "openai_bls",
        "messages": QUESTION,
        "temperature": 0,
        "n": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    response = httpx.post(f"{server.openai_url}/chat/completions", json=body, timeout=60)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    *rest, last = chunks
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] > 0
    assert all(chunk["usage"] is None for chunk in rest)
    for index in (0, 1):
        deltas = [c["choices"][0] for c in rest if c["choices"][0]["index"] == index]
        assert deltas[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in delta["delta"] for delta in deltas[1:])
        assert deltas[-1]["delta"] == {}
        assert [d["finish_reason"] for d in deltas] == [None] * (len(deltas) - 1) + ["stop"]


def test_sdk_streaming_helper(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "openai_bls", "messages": QUESTION, "temperature": 0, "logprobs": True}
    with client.chat.completions.stream(**options, top_logprobs=2) as stream:
        stream.until_done()
        completion = stream.get_final_completion()
    whole = client.chat.completions.create(**options, top_logprobs=2).choices[0].logprobs
    found = completion.choices[0].logprobs
    assert found is not None
    assert whole is not None
    assert [entry.token for entry in found.content or []] == [entry.token for entry in whole.content or []]
    assert completion.choices[0].message.content == ANSWERED.answer


def test_n(client: openai.OpenAI, reference: Reference) -> None:
    answer = client.chat.completions.create(model="openai_bls", messages=QUESTION, n=3, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.message.content for choice in answer.choices} == {ANSWERED.answer}
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(reference.prompt_token_ids(ANSWERED))
    assert answer.usage.completion_tokens == 3 * ANSWERED.tokens


def test_several_prompts(client: openai.OpenAI) -> None:
    prompts = ["What is machine learning?", "Born in north-east France, Soyer trained as a"]
    options: dict[str, Any] = {"model": "openai_bls", "max_tokens": 20, "temperature": 0}
    alone = [client.completions.create(prompt=prompt, **options).choices[0].text for prompt in prompts]
    together = client.completions.create(prompt=prompts, n=2, **options)
    assert [choice.text for choice in together.choices] == [alone[0], alone[0], alone[1], alone[1]]


@pytest.mark.parametrize("stop", ["patterns", ["patterns", "rules"], ["fixed rules. A"], ["zzz", " many "]])
def test_stop(client: openai.OpenAI, reference: Reference, stop: Any) -> None:
    whole = ANSWERED.answer
    stops = [stop] if isinstance(stop, str) else stop
    cut = min((whole.find(s) for s in stops if s in whole), default=len(whole))
    options: dict[str, Any] = {"model": "openai_bls", "messages": QUESTION, "temperature": 0, "stop": stop}
    answer = client.chat.completions.create(**options)
    assert answer.choices[0].message.content == whole[:cut]
    assert answer.choices[0].finish_reason == "stop"
    stream = client.chat.completions.create(stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole[:cut]


def test_seed_and_sampling(client: openai.OpenAI) -> None:
    def texts(**options: Any) -> list[str]:
        # A prompt of which the demo model knows nothing; its own defaults, top_k 20 and top_p 0.8, are put aside.
        answer = client.completions.create(
            model="openai_bls",
            prompt="zyx",
            temperature=2.0,
            top_p=1.0,
            max_tokens=30,
            extra_body={"top_k": options.pop("top_k", -1), "ignore_eos": True},
            **options,
        )
        return [choice.text for choice in answer.choices]

    first = texts(seed=7)
    assert texts(seed=7) == first
    assert texts(seed=8) != first
    # Choices have seeds of their own, the first the request's.
    several = texts(seed=7, n=4)
    assert several[:1] == first
    assert len(set(several)) == 4
    assert texts() != texts()
    # Only the likeliest token left is greedy, whatever the temperature.
    plain = client.completions.create(
        model="openai_bls", prompt="zyx", temperature=0, max_tokens=30, extra_body={"ignore_eos": True}
    )
    assert texts(top_k=1) == [plain.choices[0].text]


def _calls(text: str) -> list[dict[str, Any]]:
    """The tool calls in a raw answer of the demo model."""
    return [json.loads(part.split("</tool_call>")[0]) for part in text.split("<tool_call>")[1:]]


def test_tool_calls(client: openai.OpenAI, reference: Reference) -> None:
    """Streamed and whole, the calls are those in the model's raw text."""
    seen = 0
    for golden in TOOL_CHATS:
        options: Any = {
            "model": "openai_bls",
            "messages": golden.messages,
            "tools": golden.tools,
            "temperature": 0,
            "max_tokens": 256,
        }
        expected = _calls(golden.answer)
        choice = client.chat.completions.create(**options).choices[0]
        calls = choice.message.tool_calls or []
        got: list[Any] = [{"name": c.function.name, "arguments": json.loads(c.function.arguments)} for c in calls]
        assert got == expected
        assert choice.finish_reason == ("tool_calls" if expected else "stop")
        with client.chat.completions.stream(**options) as stream:
            final: Any = stream.get_final_completion().choices[0]
        streamed = final.message.tool_calls or []
        assert [(c.function.name, c.function.arguments) for c in streamed] == [
            (c.function.name, c.function.arguments) for c in calls
        ]
        assert len({c.id for c in calls}) == len(calls)
        assert final.finish_reason == choice.finish_reason
        seen += len(expected)
    assert seen > 0


def test_best_of(client: openai.OpenAI) -> None:
    """The likeliest of the candidates, which the same seed draws again as choices."""
    options: dict[str, Any] = {"prompt": "zyx", "temperature": 1.2, "seed": 21, "max_tokens": 12, "logprobs": 0}
    candidates = client.completions.create(model="openai_bls", n=5, **options)
    best = client.completions.create(model="openai_bls", n=2, best_of=5, **options)

    def likelihood(choice: Any) -> float:
        values = choice.logprobs.token_logprobs
        return float(sum(values) / len(values))

    ranked = sorted(candidates.choices, key=likelihood, reverse=True)
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    assert [choice.index for choice in best.choices] == [0, 1]
    # All that was generated is paid for.
    assert best.usage is not None
    assert candidates.usage is not None
    assert best.usage.completion_tokens == candidates.usage.completion_tokens
