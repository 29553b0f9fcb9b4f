"""Decisions by the official SDK, against the log-probabilities of their labels, asked for one by one."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import openai
import pytest

from openai_bls.launcher.testing import RunningServer
from tests.triton.reference import Reference
from tests.triton.triton_client import generate

pytestmark = pytest.mark.triton

TOLERANCE = 1e-3
CITIES = ["New", "New York", "New York City", "Paris", "Newark"]
ASKED = "Which one?\n\n" + "\n".join(f"- {city}" for city in CITIES)


def logprob(client: openai.OpenAI, prompt: list[int], label: list[int]) -> float:
    """Log-probability of a label's tokens after a prompt, of an echo."""
    answer = client.completions.create(
        model="openai_bls", prompt=[*prompt, *label], max_tokens=0, echo=True, logprobs=0, temperature=0
    )
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.token_logprobs is not None
    return math.fsum(found.token_logprobs[-len(label) :])


def prompt_of(server: RunningServer, content: str) -> list[int]:
    body = {"model": "openai_bls", "messages": [{"role": "user", "content": content}], "reasoning_effort": "none"}
    response = httpx.post(f"{server.openai_url}/chat/completions/render", json=body, timeout=60)
    ids: list[int] = response.json()["token_ids"]
    return ids


def test_choices_that_begin_alike(server: RunningServer, client: openai.OpenAI, reference: Reference) -> None:
    choices: list[Any] = [{"value": city} for city in CITIES]
    question: Any = {"type": "choice", "name": "city", "instructions": "Which one?", "choices": choices}
    answer = client.decisions.create(model="openai_bls", input="I am in France.", questions=[question])
    (city,) = answer.answers
    assert city.type == "choice"
    assert city.name == "city"
    prompt = prompt_of(
        server, f"I am in France.\n\n{ASKED}\n\nAnswer with one of these options, and with nothing else."
    )
    assert answer.usage.input_tokens == len(prompt)
    rows = [reference.tokenizer(text, add_special_tokens=False)["input_ids"] for text in CITIES]
    begins = [math.exp(logprob(client, prompt, row)) for row in rows]
    expected = list(begins)
    for at, row in enumerate(rows):
        longer = [other for other in range(len(rows)) if other != at and rows[other][: len(row)] == row]
        least = [
            one for one in longer if not any(rows[one][: len(rows[two])] == rows[two] for two in longer if two != one)
        ]
        expected[at] -= math.fsum(begins[one] for one in least)
    total = math.fsum(expected)
    assert [one.probability for one in city.probabilities] == pytest.approx(
        [one / total for one in expected], rel=1e-2, abs=1e-6
    )
    assert city.choice == CITIES[max(range(len(rows)), key=expected.__getitem__)]


def test_questions_of_every_type(server: RunningServer, client: openai.OpenAI) -> None:
    questions: list[Any] = [
        {"type": "predicate", "instructions": "It rains."},
        {"type": "score", "name": "n", "instructions": "How much?", "levels": [{"label": "little"}, {"label": "much"}]},
        {"type": "choice", "instructions": "What?", "choices": [{"value": True}, {"value": "true"}]},
    ]
    asked: Any = {"model": "openai_bls", "input": [{"role": "user", "content": "A pear."}], "questions": questions}
    first = client.decisions.create(**asked)
    assert [(one.type, one.name) for one in first.answers] == [("predicate", None), ("score", "n"), ("choice", None)]
    score = first.answers[1]
    assert score.type == "score"
    assert math.fsum(one.probability for one in score.probabilities) == pytest.approx(1)
    assert score.score == pytest.approx(score.probabilities[1].probability)
    again = client.decisions.create(**asked)
    assert again.usage.input_tokens_details.cached_tokens > 0
    by_triton = generate(server.http_url, "openai_bls", {"endpoint": "decisions", "request": json.dumps(asked)})
    for other in (again.to_dict(), json.loads(by_triton["response"])):
        found = [one["probability"] for one in other["answers"][2]["probabilities"]]  # type: ignore[index]
        choice = first.answers[2]
        assert choice.type == "choice"
        assert found == pytest.approx([one.probability for one in choice.probabilities], rel=1e-2)


def test_refusals(client: openai.OpenAI) -> None:
    same: Any = [{"value": "a"}, {"value": "a"}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.decisions.create(
            model="openai_bls", input="x", questions=[{"type": "choice", "instructions": "?", "choices": same}]
        )
    assert refused.value.param == "questions[0].choices[1].value"
