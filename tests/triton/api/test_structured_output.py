"""Structured output on /v1: whatever a client asks the output to match it does match, whole and streamed."""

from __future__ import annotations

import asyncio
import json
import re
from enum import Enum
from typing import Annotated, Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from openai_bls.launcher.testing import RunningServer
from tests.triton.conftest import CHATS

pytestmark = pytest.mark.triton

CAPITAL: Any = [{"role": "user", "content": "Answer in JSON: what is the capital of France?"}]
# Nothing that the model would answer in any of the forms below by itself.
STORY: Any = [{"role": "user", "content": "Write a short story."}]


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Wheel(BaseModel):
    inches: Annotated[int, Field(ge=10, le=40)]
    spokes: Literal[16, 32] | None


class Bicycle(BaseModel):
    """Nested, with a list, an enumeration, numbers in bounds and text of bounded length."""

    color: Color
    wheels: Annotated[list[Wheel], Field(min_length=1, max_length=2)]
    owner: Annotated[str, Field(min_length=1, max_length=8)]
    electric: bool


DATE = r"(19|20)\d\d-(0[1-9]|1[0-2])-[0-3]\d"
LIST = 'root ::= "(" word (", " word){1,3} ")"\nword ::= "red" | "green" | "blue"\n'
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "regex": ({"structured_outputs": {"regex": DATE}}, DATE),
    "guided_regex": ({"guided_regex": DATE}, DATE),
    "choice": ({"structured_outputs": {"choice": ["maybe", "可能", "maybe not"]}}, "maybe|可能|maybe not"),
    "guided_choice": ({"guided_choice": ["sí", "no"]}, "sí|no"),
    "json": ({"structured_outputs": {"json": {"enum": [1, "x"]}}}, '1|"x"'),
    "grammar": ({"structured_outputs": {"grammar": LIST}}, r"\((red|green|blue)(, (red|green|blue)){1,3}\)"),
}
"""Fields → what the output must match."""


def contents(client: openai.OpenAI, messages: Any, body: dict[str, Any], **options: Any) -> list[str]:
    """The texts of a request's choices, streamed."""
    texts: dict[int, str] = {}
    stream: Any = client.chat.completions.create(
        model="openai_bls", messages=messages, stream=True, extra_body=body, **options
    )
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            assert choice.finish_reason in (None, "stop")
    return [texts[index] for index in sorted(texts)]


def test_parse_what_the_model_would_not_write(client: openai.OpenAI) -> None:
    """Four answers drawn at a high temperature, each of them valid, and each in the schema's order."""
    completion = client.chat.completions.parse(
        model="openai_bls", messages=STORY, temperature=1.5, top_p=1, seed=11, n=4, response_format=Bicycle
    )
    assert len(completion.choices) == 4
    for choice in completion.choices:
        assert isinstance(choice.message.parsed, Bicycle)
        content = json.loads(choice.message.content or "")
        jsonschema.validate(content, Bicycle.model_json_schema())
        assert list(content) == list(Bicycle.model_fields)
    assert len({choice.message.content for choice in completion.choices}) > 1


def test_streamed_parse(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "openai_bls", "messages": STORY, "temperature": 0}
    whole = client.chat.completions.parse(response_format=Bicycle, **options)
    with client.chat.completions.stream(response_format=Bicycle, **options) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"content.delta", "content.done"} <= kinds
    assert final.choices[0].message.parsed == whole.choices[0].message.parsed
    assert final.choices[0].message.content == whole.choices[0].message.content


def test_json_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="openai_bls", messages=CAPITAL, temperature=0, response_format={"type": "json_object"}
    )
    assert json.loads(answer.choices[0].message.content or "") == {"country": "France", "capital": "Paris"}
    # Cut at the length, it is what there is, and says so.
    cut = client.chat.completions.create(
        model="openai_bls", messages=STORY, temperature=0, max_tokens=5, response_format={"type": "json_object"}
    )
    assert cut.choices[0].finish_reason == "length"
    assert (cut.choices[0].message.content or "").startswith("{")


@pytest.mark.parametrize("name", list(FORMS))
def test_other_forms(client: openai.OpenAI, name: str) -> None:
    body, pattern = FORMS[name]
    options: dict[str, Any] = {"model": "openai_bls", "messages": STORY, "temperature": 1.2, "seed": 5, "n": 3}
    answer = client.chat.completions.create(extra_body=body, **options)
    texts = [choice.message.content or "" for choice in answer.choices]
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 3
    for text in texts:
        assert re.fullmatch(pattern, text)
    assert contents(client, STORY, body, temperature=1.2, seed=5, n=3) == texts


def test_side_by_side(server: RunningServer) -> None:
    """Requests with grammars and without, in the same batch, do not disturb each other."""

    async def ask(client: openai.AsyncOpenAI, messages: Any, body: dict[str, Any]) -> str | None:
        answer: Any = await client.chat.completions.create(
            model="openai_bls", messages=messages, temperature=0, extra_body=body
        )
        text: str = answer.choices[0].message.content
        return text

    async def everyone() -> None:
        goldens = [golden for golden in CHATS if golden.tokens < 100][:8]
        forms = list(FORMS.values())
        async with openai.AsyncOpenAI(base_url=server.openai_url, api_key="none", max_retries=0) as client:
            texts = await asyncio.gather(
                *(ask(client, golden.messages, {}) for golden in goldens),
                *(ask(client, STORY, body) for body, _ in forms),
            )
        assert texts[: len(goldens)] == [golden.answer for golden in goldens]
        for text, (_, pattern) in zip(texts[len(goldens) :], forms, strict=True):
            assert re.fullmatch(pattern, text or "")

    asyncio.run(everyone())


def test_a_grammar_beyond_its_budget_is_refused_by_its_field(client: openai.OpenAI) -> None:
    costly = "start: X\nX: /(?s:.*)(a|b)(?s:.{500})c/ & /(?s:.*)(a|d)(?s:.{499})c/"
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(
                model="openai_bls",
                messages=STORY,
                stream=stream,
                max_tokens=8,
                extra_body={"structured_outputs": {"grammar": costly}},
            )
        assert caught.value.param == "structured_outputs.grammar"
