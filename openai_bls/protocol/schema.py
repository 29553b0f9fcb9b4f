"""OpenAI request bodies, field by field.

A field is in one of four places, and nowhere else:

- honoured: typed here and used in `requests`;
- harmless: in `Harmless`, accepted and ignored since it cannot change the output;
- not honoured yet: in `NotHonoured`, accepted at its neutral value and otherwise refused by name;
- unknown: refused by name.

Sources: the OpenAI API reference for chat completions and completions; vLLM's names for the additions.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

# The OpenAI SDKs leave unset fields out, other clients send null: both mean the default.
NonNegativeInt = Annotated[int, Meta(ge=0)]
# Bounded, since what goes to the engine must fit its integers.
PositiveInt = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Temperature = Annotated[float, Meta(ge=0.0, le=2.0)]
Probability = Annotated[float, Meta(ge=0.0, le=1.0)]
TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
Choices = Annotated[int, Meta(ge=1, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
FunctionName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.\-]+\Z")]


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    """A content part; images, audio and files are refused."""

    text: str


class RefusalPart(msgspec.Struct, tag_field="type", tag="refusal"):
    """An assistant's refusal, fed back."""

    refusal: str


Content = str | list[TextPart | RefusalPart]


class FunctionCall(msgspec.Struct):
    """The function of a tool call, as an assistant message carries it."""

    name: str
    arguments: str = "{}"
    """JSON text."""


class ToolCall(msgspec.Struct, tag_field="type", tag="function"):
    """An earlier tool call, fed back."""

    function: FunctionCall
    id: str | None = None
    index: int | None = None


class SystemMessage(msgspec.Struct, tag_field="role", tag="system", forbid_unknown_fields=True):
    """Instructions."""

    content: Content
    name: str | None = None


class DeveloperMessage(msgspec.Struct, tag_field="role", tag="developer", forbid_unknown_fields=True):
    """Instructions under their newer name; chat templates see a system message."""

    content: Content
    name: str | None = None


class UserMessage(msgspec.Struct, tag_field="role", tag="user", forbid_unknown_fields=True):
    """The user's words."""

    content: Content
    name: str | None = None


class AssistantMessage(msgspec.Struct, tag_field="role", tag="assistant"):
    """An earlier answer. Further fields of OpenAI's own answers (annotations, say) are harmless here."""

    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    # not honoured: null only, see `requests`
    function_call: Any = None
    audio: Any = None


class ToolMessage(msgspec.Struct, tag_field="role", tag="tool", forbid_unknown_fields=True):
    """A tool's result."""

    content: Content
    tool_call_id: str | None = None
    name: str | None = None


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class Function(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema."""
    strict: bool | None = None


class Tool(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    """A tool; functions are the only kind."""

    function: Function


class NamedFunction(msgspec.Struct):
    """The function a `tool_choice` names."""

    name: str


class NamedToolChoice(msgspec.Struct, tag_field="type", tag="function"):
    """A `tool_choice` that names a function."""

    function: NamedFunction


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What a stream carries besides the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None
    """Padding against traffic analysis on OpenAI's own network: accepted, none is sent."""


class Harmless(msgspec.Struct, kw_only=True):
    """Accepted and ignored: none of these can change the output."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


class Generation(Harmless, kw_only=True):
    """What chat completions and completions share."""

    model: str | None = None
    n: Choices | None = None
    max_tokens: PositiveInt | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: int | None = None
    """-2^63 to 2^64 - 1, checked in `requests`: msgspec's bounds end at 2^63."""
    # vLLM's additions
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Probability | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    # not honoured yet: see NEUTRAL
    frequency_penalty: Any = UNSET
    presence_penalty: Any = UNSET
    repetition_penalty: Any = UNSET
    logit_bias: Any = UNSET
    logprobs: Any = UNSET
    min_tokens: Any = UNSET
    response_format: Any = UNSET


class ChatCompletionRequest(Generation, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: PositiveInt | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    # not honoured yet: see NEUTRAL
    top_logprobs: Any = UNSET
    modalities: Any = UNSET
    audio: Any = UNSET
    prediction: Any = UNSET
    reasoning_effort: Any = UNSET
    verbosity: Any = UNSET
    web_search_options: Any = UNSET
    functions: Any = UNSET
    function_call: Any = UNSET


class CompletionRequest(Generation, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/completions."""

    prompt: str | list[str | TokenId | list[TokenId]]
    echo: bool | None = None
    # not honoured yet: see NEUTRAL
    best_of: Any = UNSET
    suffix: Any = UNSET


class Neutral(msgspec.Struct, frozen=True):
    """Values at which a field that is not honoured changes nothing."""

    values: tuple[Any, ...]
    advice: str


_PENALTY = "this release samples without penalties"

NEUTRAL: dict[str, Neutral] = {
    "frequency_penalty": Neutral((0,), _PENALTY),
    "presence_penalty": Neutral((0,), _PENALTY),
    "repetition_penalty": Neutral((1,), _PENALTY),
    "logit_bias": Neutral(({},), "this release takes no logit bias"),
    "logprobs": Neutral((False,), "this release returns no log-probabilities"),
    "top_logprobs": Neutral((0,), "this release returns no log-probabilities"),
    "min_tokens": Neutral((0,), "this release has no least length"),
    "response_format": Neutral(
        ({"type": "text"},), "this release writes free text only, no JSON mode and no JSON schema"
    ),
    "modalities": Neutral((["text"], []), "text is the only modality"),
    "audio": Neutral((), "text is the only modality"),
    "prediction": Neutral((), "this release has no predicted outputs"),
    "reasoning_effort": Neutral((), "use chat_template_kwargs for what the model's template offers"),
    "verbosity": Neutral(("medium",), "the served models have no such setting"),
    "web_search_options": Neutral((), "there is no web search here"),
    "functions": Neutral(([],), "use tools"),
    "function_call": Neutral(("none", "auto"), "use tools and tool_choice"),
    "best_of": Neutral((1,), "use n and choose among the answers"),
    "suffix": Neutral(("",), "the served models do not fill in the middle"),
}
"""Field name → the values at which it may be given; null always may."""


def refuse_not_honoured(request: Generation) -> str | None:
    """The name of a field that asks for something this release does not do, or None."""
    for name, neutral in NEUTRAL.items():
        value = getattr(request, name, UNSET)
        if isinstance(value, UnsetType) or value is None:
            continue
        if not any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in neutral.values):
            return name
    return None
