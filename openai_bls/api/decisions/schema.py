"""Body and answer of /v1/decisions.

Source: openai-python's types of its Decisions API. vLLM and transformers serve the same questions in another form, as
/v1/systemone; where the three differ, the SDK's counts.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from openai_bls.core.media import ImageDetail

MAX_QUESTIONS = 400
MAX_CHOICES = 255
MAX_LEVELS = 10
MAX_LABEL_LENGTH = 512
"""Characters of a choice's value or of a level's label."""


class InputText(msgspec.Struct, tag_field="type", tag="input_text", forbid_unknown_fields=True):
    """Text."""

    text: str


class InputImage(msgspec.Struct, tag_field="type", tag="input_image", forbid_unknown_fields=True):
    """An image, for a model that takes images."""

    image_url: str
    """A `data:` URI with base64, or an http or https URL of a host that the setting `image_url_hosts` allows."""
    detail: ImageDetail | None = None
    """`low` scales the image down to fit 512 x 512 pixels; `high`, `original` and `auto` take it as it is."""


class InputJson(msgspec.Struct, tag_field="type", tag="input_json", forbid_unknown_fields=True):
    """JSON, which the model sees as text: up to 32 levels, 10,000 values and 256 KiB."""

    data: dict[str, Any] | list[dict[str, Any]]


class OutputText(msgspec.Struct, tag_field="type", tag="output_text", forbid_unknown_fields=True):
    """Text of an assistant."""

    text: str


class Refusal(msgspec.Struct, tag_field="type", tag="refusal", forbid_unknown_fields=True):
    """Refusal of an assistant."""

    refusal: str


Part = InputText | InputImage | InputJson | OutputText | Refusal
Status = Literal["in_progress", "completed", "incomplete"]


class Message(msgspec.Struct, tag_field="type", tag="message", forbid_unknown_fields=True):
    """A message; images and JSON are a user's, refusals an assistant's."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    phase: Literal["commentary", "final_answer"] | None = None
    """No effect."""


class FunctionCall(msgspec.Struct, tag_field="type", tag="function_call", forbid_unknown_fields=True):
    """A call that an assistant made."""

    call_id: str
    name: str
    arguments: str
    id: str | None = None
    namespace: str | None = None
    status: Status | None = None


class FunctionCallOutput(msgspec.Struct, tag_field="type", tag="function_call_output", forbid_unknown_fields=True):
    """The result of an earlier call."""

    call_id: str
    output: str | list[InputText | InputImage]
    id: str | None = None
    status: Status | None = None


class CustomToolCall(msgspec.Struct, tag_field="type", tag="custom_tool_call", forbid_unknown_fields=True):
    """A call of a custom tool that an assistant made."""

    call_id: str
    name: str
    input: str
    id: str | None = None
    namespace: str | None = None
    status: Status | None = None


class CustomToolCallOutput(msgspec.Struct, tag_field="type", tag="custom_tool_call_output", forbid_unknown_fields=True):
    """The result of an earlier call of a custom tool."""

    call_id: str
    output: str | list[InputText | InputImage]
    id: str | None = None
    status: Status | None = None


Item = Message | FunctionCall | FunctionCallOutput | CustomToolCall | CustomToolCallOutput
OPTIONAL_TAGS = frozenset({Message})
"""Items that may leave their type out."""

Instructions = str | Annotated[list[InputText | InputImage | InputJson], Meta(min_length=1)]
Label = Annotated[str, Meta(min_length=1, max_length=MAX_LABEL_LENGTH)]


class Predicate(msgspec.Struct, tag_field="type", tag="predicate", forbid_unknown_fields=True):
    """A statement about the input: how likely is it that it is true?"""

    instructions: Instructions
    name: str | None = None


class Option(msgspec.Struct, forbid_unknown_fields=True):
    """An option of a choice."""

    value: Label | bool
    """Text or a boolean, which are two options even where they read the same."""
    description: str | None = None


class Choice(msgspec.Struct, tag_field="type", tag="choice", forbid_unknown_fields=True):
    """A question with options."""

    instructions: Instructions
    choices: Annotated[list[Option], Meta(min_length=2, max_length=MAX_CHOICES)]
    name: str | None = None


class Level(msgspec.Struct, forbid_unknown_fields=True):
    """A level of a score."""

    label: Label
    description: str | None = None


class Score(msgspec.Struct, tag_field="type", tag="score", forbid_unknown_fields=True):
    """A question with levels, the lowest first."""

    instructions: Instructions
    levels: Annotated[list[Level], Meta(min_length=2, max_length=MAX_LEVELS)]
    name: str | None = None


Question = Predicate | Choice | Score


class WithoutEffectOnDecisions(msgspec.Struct, kw_only=True):
    """Taken without effect: none of these can change the answer."""

    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    safety_identifier: str | None = None


class DecisionsBody(WithoutEffectOnDecisions, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/decisions."""

    input: str | Annotated[list[Item], Meta(min_length=1)]
    """What the questions are about: text, or messages, calls and their outputs. A user's parts are `input_text`,
    `input_image` and `input_json`."""
    questions: Annotated[list[Question], Meta(min_length=1, max_length=MAX_QUESTIONS)]
    """1 to 400 of `type` `predicate`, `choice` (2 to 255 `choices`) and `score` (2 to 10 `levels`), each with
    `instructions` and a `name`; up to 2,048 labels in all."""
    model: str | None = None
    """A served name of an engine; may be left out."""


class PredicateAnswer(msgspec.Struct, tag_field="type", tag="predicate", frozen=True):
    """How likely the statement is."""

    name: str | None
    probability: float


class OptionProbability(msgspec.Struct, frozen=True):
    """An option with its probability."""

    value: str | bool
    probability: float


class ChoiceAnswer(msgspec.Struct, tag_field="type", tag="choice", frozen=True):
    """The likeliest option."""

    name: str | None
    choice: str | bool
    probabilities: list[OptionProbability]
    """In the order of the question; their sum is 1."""
    confidence: float
    """0 where all are equally likely, 1 where the choice is certain."""


class LevelProbability(msgspec.Struct, frozen=True):
    """A level with its probability."""

    value: int
    """Place of the level, from 0."""
    label: str
    probability: float


class ScoreAnswer(msgspec.Struct, tag_field="type", tag="score", frozen=True):
    """The mean level."""

    name: str | None
    score: float
    """From 0, the first level, to the last one's place."""
    probabilities: list[LevelProbability]
    """In the order of the levels; their sum is 1."""
    confidence: float
    """1 where one level is certain, 0 where the others are as far off as if all were equally likely."""


class InputDetails(msgspec.Struct, frozen=True):
    """Input tokens by kind."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(msgspec.Struct, frozen=True):
    """Output tokens by kind."""

    reasoning_tokens: int


class DecisionUsage(msgspec.Struct, frozen=True):
    """Token counts: the prompts of all questions; nothing is generated."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Decision(msgspec.Struct, frozen=True):
    """The answers, in the order of the questions."""

    model: str
    answers: list[PredicateAnswer | ChoiceAnswer | ScoreAnswer]
    usage: DecisionUsage
