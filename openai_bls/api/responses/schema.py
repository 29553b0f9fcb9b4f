"""Bodies of /v1/responses and /v1/responses/input_tokens, field by field.

As in `chat.schema`, a field is honoured, without effect, refused unless neutral, or unknown. Honoured ones that chat
completions has too are checked there; only what differs is typed here. Source: the OpenAI API reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta

from openai_bls.api.chat.formats import FormatName, JsonObjectFormat, TextFormat
from openai_bls.api.chat.schema import PositiveInt
from openai_bls.api.common.bodies import Metadata
from openai_bls.api.common.documented import documented
from openai_bls.api.common.unsupported import Unsupported
from openai_bls.api.responses.items import InputItem
from openai_bls.api.responses.tools.schema import HostedTool, Tool, ToolChoice
from openai_bls.core.engine_types import SamplingParams

Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    # What there never is here.
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


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
    """No effect: the served models have no such setting."""


class Reasoning(msgspec.Struct, forbid_unknown_fields=True):
    """Options of the reasoning."""

    effort: str | None = None
    """Effort of the reasoning where the chat template knows it."""
    # unsupported: see UNSUPPORTED
    summary: Any = UNSET
    generate_summary: Any = UNSET
    context: Any = UNSET
    mode: Any = UNSET


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a stream."""

    include_obfuscation: bool | None = None
    """Padding against traffic analysis on OpenAI's own network: accepted, none is sent."""


class ConversationId(msgspec.Struct, forbid_unknown_fields=True):
    """A conversation by its id."""

    id: str


class PromptExtras(msgspec.Struct, kw_only=True):
    """vLLM's additions that the prompt depends on, checked by chat completions."""

    chat_template: Any = UNSET
    chat_template_kwargs: Any = UNSET
    add_special_tokens: Any = UNSET
    documents: Any = UNSET


class CountRequest(PromptExtras, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/responses/input_tokens: what makes the prompt."""

    model: str | None = None
    """A served name; absent is the default model; unknown is a 404 `model_not_found`."""
    # Read by `items`.
    input: Annotated[str | list[dict[str, Any]] | None, documented(str | list[InputItem] | None, per_token=True)] = None
    """A string, or items: messages, calls of tools and their outputs, `reasoning`, `compaction`, `item_reference`.
    Files and audio are refused. See "Tools of agents"."""
    instructions: str | None = None
    """Instructions to the model; the instructions of an earlier response are not carried over."""
    previous_response_id: str | None = None
    """A response to continue; kept in the memory of each `openai_bls` instance, each for its API key. An id that is not
    there is a 400 `previous_response_not_found`."""
    # Read by `tools.reading`, which can say better what is wrong.
    tools: Annotated[list[dict[str, Any]] | None, documented(list[Tool | HostedTool] | None, per_token=True)] = None
    """Functions, custom tools, namespaces and the client's tool search; those that OpenAI's service runs are left out.
    A missing `strict` is false. See "Tools of agents"."""
    # Read by `tools.choice`.
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | dict[str, Any] | None, documented(ToolChoice | None)
    ] = None
    """auto, required, none, a function or custom tool, or `allowed_tools`. See "Tools"."""
    parallel_tool_calls: bool | None = None
    """False ends the answer after one call."""
    text: Text | None = None
    """`format` text, json_object, json_schema; `verbosity` is without effect."""
    reasoning: Reasoning | None = None
    """`effort`. `summary` changes nothing: thoughts come as they are, in `reasoning_text` parts."""
    conversation: str | ConversationId | None = None
    """A conversation, its id or `{"id": ...}`: its items come before `input`, and input and output are added. Unknown
    is a 404. Not with `previous_response_id`."""
    # unsupported: see UNSUPPORTED
    truncation: Any = UNSET
    personality: Any = UNSET


class WithoutEffectInCompaction(msgspec.Struct, kw_only=True):
    """Taken without effect by /v1/responses/compact."""

    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    prompt_cache_options: dict[str, Any] | None = None


class CompactRequest(WithoutEffectInCompaction, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/responses/compact."""

    model: str | None = None
    """A served name; absent is the default model."""
    input: Annotated[str | list[dict[str, Any]] | None, documented(str | list[InputItem] | None, per_token=True)] = None
    """Input of a request for a response."""
    instructions: str | None = None
    previous_response_id: str | None = None
    """A response to continue."""
    # unsupported: see UNSUPPORTED
    image: Any = UNSET


if TYPE_CHECKING:
    _WithSampling = CountRequest
else:
    _WithSampling = msgspec.defstruct(
        "_WithSampling",
        [(name, Any, UNSET) for name in SamplingParams.__struct_fields__],
        bases=(CountRequest,),
        module=__name__,
        kw_only=True,
    )


class ChatFields(_WithSampling, kw_only=True):
    """Fields of the generation that are chat completions' too, every sampling parameter among them; checked there."""

    # OpenAI's chat completions have it, vLLM's responses too
    stop: Any = UNSET
    # vLLM's additions
    min_tokens: Any = UNSET
    bad_words: Any = UNSET
    stop_token_ids: Any = UNSET
    ignore_eos: Any = UNSET
    include_stop_str_in_output: Any = UNSET
    skip_special_tokens: Any = UNSET
    truncate_prompt_tokens: Any = UNSET
    include_reasoning: Any = UNSET
    timeout: Any = UNSET
    priority: Any = UNSET
    structured_outputs: Any = UNSET


class WithoutEffect(ChatFields, kw_only=True):
    """Taken without effect: none of these can change the answer."""

    client_metadata: dict[str, Any] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    """Limit of the calls of tools that OpenAI's service runs."""
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    service_tier: str | None = None


class CreateRequest(WithoutEffect, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/responses."""

    max_output_tokens: PositiveInt | None = None
    """Most new tokens, or fewer at the end of the context; the response is then `incomplete`, its reason
    `max_output_tokens`."""
    include: Annotated[list[str] | None, documented(list[Includable] | None)] = None
    """`message.output_text.logprobs` (engine), `reasoning.encrypted_content` (see "Encrypted content and compaction"),
    and values that change nothing here."""
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """0 to 20 of the likeliest tokens, with `include`."""
    metadata: Metadata | None = None
    """Up to 16 texts by name, kept with the response."""
    store: bool | None = None
    """False keeps no response."""
    background: bool | None = None
    """True makes the response whether or not its client waits; the client asks for it by its id. See "Background
    responses"."""
    stream: bool | None = None
    """Typed server-sent events with `sequence_number` instead of one response."""
    stream_options: StreamOptions | None = None
    """No effect: `include_obfuscation`."""
    # unsupported: see UNSUPPORTED
    background_options: Any = UNSET
    prompt: Any = UNSET
    context_management: Any = UNSET
    moderation: Any = UNSET
    access_programs: Any = UNSET
    image: Any = UNSET


class ItemQuery(msgspec.Struct):
    """Query of an item."""

    include: list[Includable] | None = None
    """Encrypted content of reasoning; log-probabilities are there where a response was made with them."""


class RetrieveQuery(ItemQuery, kw_only=True):
    """Query of GET /v1/responses/{response_id}."""

    stream: bool | None = None
    """The events of a response in the background, those to come too."""
    starting_after: Annotated[int, Meta(ge=0, le=999_999_999)] | None = None
    """Number of the last event that the client knows, with `stream`."""
    include_obfuscation: bool | None = None
    """No effect."""


class PageQuery(ItemQuery, kw_only=True):
    """Query of a list of items."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    """Items of the page."""
    order: Literal["asc", "desc"] = "desc"
    """`desc` is the newest first."""
    after: str | None = None
    """Id of the item after which the page begins."""


def conversation_id(given: CountRequest) -> str | None:
    """Id of the conversation that a request names."""
    named = given.conversation
    return named.id if isinstance(named, ConversationId) else named


PASSED_ON = (*PromptExtras.__struct_fields__, *ChatFields.__struct_fields__[len(CountRequest.__struct_fields__) :])
"""Fields that mean the same to chat completions, which check them."""

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
INCLUDABLE: tuple[str, ...] = get_args(Includable)
"""The values of `include`."""

# OpenAI's may be empty, too.
_SUMMARIES = ("auto", "concise", "detailed")

UNSUPPORTED: dict[str, Unsupported] = {
    "background_options": Unsupported(({"completion_window": "soonest"},), "there is one queue for all requests"),
    "prompt": Unsupported((), "there are no stored prompts here; use instructions and input"),
    # An input that is too long is refused with "auto", too.
    "truncation": Unsupported(("disabled", "auto"), "an input that is too long is refused, not cut"),
    "context_management": Unsupported(([],), "nothing is compacted by itself, only by /v1/responses/compact"),
    "moderation": Unsupported((), "there is no moderation model here"),
    "access_programs": Unsupported((), "it belongs to OpenAI's own service"),
    "image": Unsupported((), "answers are text only"),
    "personality": Unsupported((), "the served models have no such setting; use instructions"),
    "reasoning.summary": Unsupported(_SUMMARIES, "reasoning is given as it is, in reasoning_text parts"),
    "reasoning.generate_summary": Unsupported(_SUMMARIES, "reasoning is given as it is, in reasoning_text parts"),
    "reasoning.context": Unsupported(
        ("auto", "current_turn", "all_turns"), "which reasoning the model sees is for its chat template to say"
    ),
    "reasoning.mode": Unsupported(("standard",), "the served models have no such setting"),
}
"""Field → the values at which it may be given; null always may."""
