"""Bodies of /v1/responses and /v1/responses/input_tokens, field by field.

As in `chat.schema`, a field is honoured, harmless, refused unless neutral, or unknown. Honoured ones that chat
completions has too are checked there; only what differs is typed here. Source: the OpenAI API reference.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from openai_bls.api.chat.schema import FunctionName, PositiveInt
from openai_bls.api.common.unsupported import Unsupported

FormatName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_\-]+\Z")]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


class FunctionTool(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema."""
    strict: bool | None = None
    """None is false: OpenAI would rewrite the schema until it can be enforced."""
    # unsupported: see UNSUPPORTED_IN_TOOLS
    allowed_callers: Any = UNSET
    background: Any = msgspec.field(default=UNSET, name="async")
    defer_loading: Any = UNSET
    output_schema: Any = UNSET


class FunctionChoice(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    """A `tool_choice` that names a function."""

    name: str


class AllowedToolsChoice(msgspec.Struct, tag_field="type", tag="allowed_tools", forbid_unknown_fields=True):
    """A `tool_choice` that allows some of the tools only."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Meta(min_length=1)]


class TextFormat(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Plain text."""


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """Any JSON object."""


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """JSON that a schema describes."""

    name: FormatName
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class Text(msgspec.Struct, forbid_unknown_fields=True):
    """Options of the answer's text."""

    format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    verbosity: str | None = None
    """Checked by chat completions."""


class Reasoning(msgspec.Struct, forbid_unknown_fields=True):
    """Options of the reasoning."""

    effort: str | None = None
    """Checked by chat completions and the chat template."""
    # unsupported: see UNSUPPORTED
    summary: Any = UNSET
    generate_summary: Any = UNSET
    context: Any = UNSET
    mode: Any = UNSET


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a stream."""

    include_obfuscation: bool | None = None
    """Padding against traffic analysis on OpenAI's own network: accepted, none is sent."""


class PromptExtras(msgspec.Struct, kw_only=True):
    """vLLM's additions that the prompt depends on, checked by chat completions."""

    chat_template: Any = UNSET
    chat_template_kwargs: Any = UNSET
    add_special_tokens: Any = UNSET
    documents: Any = UNSET


class CountRequest(PromptExtras, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/responses/input_tokens: what makes the prompt."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    """Read by `items`."""
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    """Read by `parsing`, which names a tool that is no function."""
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | AllowedToolsChoice | None = None
    parallel_tool_calls: bool | None = None
    text: Text | None = None
    reasoning: Reasoning | None = None
    # unsupported: see UNSUPPORTED
    conversation: Any = UNSET
    truncation: Any = UNSET
    personality: Any = UNSET


class ChatFields(CountRequest, kw_only=True):
    """Fields of the generation that are chat completions' too, and are checked there."""

    temperature: Any = UNSET
    top_p: Any = UNSET
    # OpenAI's chat completions have these, vLLM's responses too
    stop: Any = UNSET
    seed: Any = UNSET
    presence_penalty: Any = UNSET
    frequency_penalty: Any = UNSET
    logit_bias: Any = UNSET
    # vLLM's additions
    top_k: Any = UNSET
    min_p: Any = UNSET
    repetition_penalty: Any = UNSET
    min_tokens: Any = UNSET
    bad_words: Any = UNSET
    stop_token_ids: Any = UNSET
    ignore_eos: Any = UNSET
    include_stop_str_in_output: Any = UNSET
    skip_special_tokens: Any = UNSET
    truncate_prompt_tokens: Any = UNSET
    include_reasoning: Any = UNSET
    structured_outputs: Any = UNSET


class CreateRequest(ChatFields, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/responses."""

    max_output_tokens: PositiveInt | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # harmless
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    # unsupported: see UNSUPPORTED
    background: Any = UNSET
    background_options: Any = UNSET
    prompt: Any = UNSET
    max_tool_calls: Any = UNSET
    context_management: Any = UNSET
    moderation: Any = UNSET
    access_programs: Any = UNSET
    image: Any = UNSET
    prompt_cache_options: Any = UNSET


PASSED_ON = (*PromptExtras.__struct_fields__, *ChatFields.__struct_fields__[len(CountRequest.__struct_fields__) :])
"""Fields that mean the same to chat completions, which check them."""

LOGPROBS = "message.output_text.logprobs"
"""The supported value of `include`."""

UNSUPPORTED: dict[str, Unsupported] = {
    "background": Unsupported((False,), "a response is made while its client waits"),
    "background_options": Unsupported((), "a response is made while its client waits"),
    "conversation": Unsupported((), "use previous_response_id, or send the items in input"),
    "prompt": Unsupported((), "there are no stored prompts here; use instructions and input"),
    "truncation": Unsupported(("disabled",), "an input that is too long is refused, not cut"),
    "max_tool_calls": Unsupported((), "it limits built-in tools, of which there are none"),
    "context_management": Unsupported(([],), "there is no compaction here"),
    "moderation": Unsupported((), "there is no moderation model here"),
    "access_programs": Unsupported((), "it belongs to OpenAI's own service"),
    "image": Unsupported((), "text is the only modality"),
    "prompt_cache_options": Unsupported((), "the engine decides by itself what it keeps"),
    "personality": Unsupported((), "the served models have no such setting; use instructions"),
    # OpenAI's "auto" may give none either.
    "reasoning.summary": Unsupported(("auto",), "reasoning is given as it is, in reasoning_text parts"),
    "reasoning.generate_summary": Unsupported(("auto",), "reasoning is given as it is, in reasoning_text parts"),
    "reasoning.context": Unsupported(("auto",), "which reasoning the model sees is for its chat template to say"),
    "reasoning.mode": Unsupported(("standard",), "the served models have no such setting"),
}
"""Field → the values at which it may be given; null always may."""

UNSUPPORTED_IN_TOOLS: dict[str, Unsupported] = {
    "allowed_callers": Unsupported((["direct"],), "there is no programmatic tool calling here"),
    "async": Unsupported((False,), "calls are answered in the next request"),
    "defer_loading": Unsupported((False,), "there is no tool search here"),
    "output_schema": Unsupported((), "a tool's results are not looked into"),
}
"""The same for the fields of a tool."""
