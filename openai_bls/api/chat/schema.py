"""OpenAI request bodies, field by field.

A field is in one of four places, and nowhere else:

- honoured: typed here and used in `validation`;
- harmless: in `Harmless`, accepted and ignored since it cannot change the output;
- unsupported: in `UNSUPPORTED`, accepted at its neutral value and otherwise refused by name;
- unknown: refused by name.

Sources: the OpenAI API reference for chat completions and completions; vLLM's names for the additions.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from openai_bls.api.common.unsupported import Unsupported

# The OpenAI SDKs leave unset fields out, other clients send null: both mean the default.
NonNegativeInt = Annotated[int, Meta(ge=0)]
# Bounded, since what goes to the engine must fit its integers.
PositiveInt = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Temperature = Annotated[float, Meta(ge=0.0, le=2.0)]
Probability = Annotated[float, Meta(ge=0.0, le=1.0)]
TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Choices = Annotated[int, Meta(ge=1, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
# OpenAI allows 64 characters, Anthropic 128.
FunctionName = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.\-]+\Z")]


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
    reasoning_content: str | None = None
    """Earlier reasoning, which some chat templates render again."""
    reasoning: str | None = None
    """The same under its newer name."""
    # unsupported: null only, see `tools`
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


class AllowedTool(msgspec.Struct, tag_field="type", tag="function"):
    """One of the tools that a `tool_choice` allows."""

    function: NamedFunction


class AllowedTools(msgspec.Struct, forbid_unknown_fields=True):
    """Some of the tools, to be called at will or for certain."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1)]


class AllowedToolsChoice(msgspec.Struct, tag_field="type", tag="allowed_tools"):
    """A `tool_choice` that allows some of the tools only."""

    allowed_tools: AllowedTools


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a stream."""

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


class StructuredOutput(Harmless, kw_only=True):
    """Structured output; `output.structured` reads these fields."""

    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json_object: Any = None
    guided_decoding_backend: Any = None
    guided_whitespace_pattern: Any = None


STRUCTURED_FIELDS = StructuredOutput.__struct_fields__[len(Harmless.__struct_fields__) :]


class Generation(StructuredOutput, kw_only=True):
    """Fields of chat completions and completions."""

    model: str | None = None
    n: Choices | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: int | None = None
    """-2^63 to 2^64 - 1, checked in `validation`: msgspec's bounds end at 2^63."""
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    """Token id, as a string, → bias added to its score."""
    # vLLM's additions
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Probability | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] | None = None
    min_tokens: NonNegativeInt | None = None
    bad_words: list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: PositiveInt | None = None
    # unsupported: see UNSUPPORTED
    priority: Any = UNSET
    use_beam_search: Any = UNSET
    length_penalty: Any = UNSET


class ChatCompletionRequest(Generation, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolsChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Annotated[str, Meta(max_length=32)] | None = None
    # vLLM's additions
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None
    include_reasoning: bool | None = None
    # unsupported: see UNSUPPORTED
    modalities: Any = UNSET
    audio: Any = UNSET
    prediction: Any = UNSET
    verbosity: Any = UNSET
    web_search_options: Any = UNSET
    functions: Any = UNSET
    function_call: Any = UNSET


class CompletionRequest(Generation, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/completions."""

    prompt: str | list[str | TokenId | list[TokenId]]
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """0 with `echo` only."""
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Choices | None = None
    # unsupported: see UNSUPPORTED
    suffix: Any = UNSET


UNSUPPORTED: dict[str, Unsupported] = {
    "modalities": Unsupported((["text"], []), "text is the only modality"),
    "audio": Unsupported((), "text is the only modality"),
    "prediction": Unsupported((), "there are no predicted outputs here"),
    "verbosity": Unsupported(("medium",), "the served models have no such setting"),
    "web_search_options": Unsupported((), "there is no web search here"),
    "functions": Unsupported(([],), "use tools"),
    "function_call": Unsupported(("none", "auto"), "use tools and tool_choice"),
    "suffix": Unsupported(("",), "the served models do not fill in the middle"),
    "priority": Unsupported((0,), "requests are served in the order in which they come"),
    "use_beam_search": Unsupported((False,), "the engines sample; use n or best_of"),
    "length_penalty": Unsupported((1,), "it belongs to beam search, which there is not"),
}
"""Field name → the values at which it may be given; null always may."""
