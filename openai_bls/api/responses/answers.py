"""Answers of the Responses API, for the description of the API: `responses` and `output` make them as objects."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from openai_bls.api.chat.formats import JsonObjectFormat, TextFormat
from openai_bls.api.responses.items import InputImage, InputText, ReasoningText, Refusal, Status, SummaryText
from openai_bls.api.responses.schema import JsonSchemaFormat
from openai_bls.api.responses.tools.items import HostedItem, LocalShellCall, LocalShellCallOutput
from openai_bls.api.responses.tools.schema import HostedTool, Tool


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """Text of the model."""

    text: str
    annotations: list[Any]
    """Always empty."""
    logprobs: list[dict[str, Any]]
    """Log-probabilities of the tokens, with `include`."""


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    """A message."""

    id: str
    status: Status
    role: Literal["user", "assistant", "system", "developer"]
    content: list[OutputText | InputText | Refusal]


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    """Reasoning of the model."""

    id: str
    status: Status
    summary: list[SummaryText]
    """Always empty in an output."""
    content: list[ReasoningText]
    encrypted_content: str | msgspec.UnsetType = msgspec.UNSET
    """Reasoning in a sealed form, with `include`."""


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    """A call of a function."""

    id: str
    status: Status
    call_id: str
    name: str
    arguments: str
    """JSON text."""
    namespace: str | msgspec.UnsetType = msgspec.UNSET
    """Namespace of the function, if it has one."""


class FunctionCallOutputItem(msgspec.Struct, tag_field="type", tag="function_call_output"):
    """The result of a call, as the client gave it."""

    id: str
    status: Status
    call_id: str
    output: str | list[InputText | InputImage]
    name: str | msgspec.UnsetType = msgspec.UNSET
    namespace: str | msgspec.UnsetType = msgspec.UNSET


class CustomToolCallItem(msgspec.Struct, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool."""

    id: str
    status: Status
    call_id: str
    name: str
    input: str
    """Text, of the tool's grammar if it has one."""
    namespace: str | msgspec.UnsetType = msgspec.UNSET


class CustomToolCallOutputItem(msgspec.Struct, tag_field="type", tag="custom_tool_call_output"):
    """The result of a custom tool's call, as the client gave it."""

    id: str
    status: Status
    call_id: str
    output: str | list[InputText | InputImage]
    name: str | msgspec.UnsetType = msgspec.UNSET


class ToolSearchCallItem(msgspec.Struct, tag_field="type", tag="tool_search_call"):
    """A search for tools that the client runs."""

    id: str
    status: Status
    execution: Literal["client", "server"]
    call_id: str | None
    arguments: Any
    """An object; text where the model wrote none."""


class ToolSearchOutputItem(msgspec.Struct, tag_field="type", tag="tool_search_output"):
    """The tools that a search has found."""

    id: str
    status: Status
    execution: Literal["client", "server"]
    call_id: str | None
    tools: list[Tool | HostedTool]


class AdditionalToolsItem(msgspec.Struct, tag_field="type", tag="additional_tools"):
    """Further tools, as the client gave them."""

    id: str
    role: Literal["developer"]
    tools: list[Tool | HostedTool]


class CompactionItem(msgspec.Struct, tag_field="type", tag="compaction"):
    """A summary of the conversation, encoded for the server."""

    id: str
    encrypted_content: str


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomToolCallItem | ToolSearchCallItem
ListedItem = (
    OutputItem
    | FunctionCallOutputItem
    | CustomToolCallOutputItem
    | ToolSearchOutputItem
    | AdditionalToolsItem
    | LocalShellCall
    | LocalShellCallOutput
    | HostedItem
    | CompactionItem
)


class ResponseFault(msgspec.Struct):
    """Cause of a response's failure."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    """Cause of a response's incompleteness."""

    reason: Literal["max_output_tokens"]


class InputDetails(msgspec.Struct):
    """Input tokens by kind."""

    cached_tokens: int
    cache_write_tokens: int
    image_tokens: int | None = None
    """Tokens that stand for images; absent without any."""


class OutputDetails(msgspec.Struct):
    """Output tokens by kind."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ReasoningEcho(msgspec.Struct):
    """The request's `reasoning`."""

    effort: str | None
    summary: None


class TextEcho(msgspec.Struct):
    """The request's `text`."""

    format: TextFormat | JsonObjectFormat | JsonSchemaFormat
    verbosity: str


class ConversationEcho(msgspec.Struct):
    """The conversation that a response was made in."""

    id: str


class Response(msgspec.Struct):
    """A response: the request's fields and the outcome."""

    id: str
    object: Literal["response"]
    created_at: int
    """Unix seconds."""
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    completed_at: int | None
    error: ResponseFault | None
    incomplete_details: IncompleteDetails | None
    background: bool
    conversation: ConversationEcho | None
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    reasoning: ReasoningEcho
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: TextEcho
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    user: str | None
    output: list[OutputItem]
    usage: ResponseUsage | None


class ResponseEvent(msgspec.Struct):
    """An event of a stream, with the fields that OpenAI's reference names for its type."""

    type: str
    sequence_number: int


class Compacted(msgspec.Struct):
    """A conversation in fewer tokens: the input of the next request."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    """Unix seconds."""
    output: list[MessageItem | AdditionalToolsItem | CompactionItem]
    usage: ResponseUsage


class InputTokens(msgspec.Struct):
    """Number of a prompt's tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class Deleted(msgspec.Struct):
    """Answer to a deletion."""

    id: str
    object: Literal["response"]
    deleted: bool


class ItemPage(msgspec.Struct):
    """A page of items."""

    object: Literal["list"]
    data: list[ListedItem]
    first_id: str
    last_id: str
    has_more: bool
