"""Parsing of a Responses body into the equivalent chat completion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from openai_bls.api.chat.formats import JsonObjectFormat, TextFormat
from openai_bls.api.chat.validation import parse_object, with_image_params
from openai_bls.api.common.bodies import fault
from openai_bls.api.common.fields import IgnoredFields, UnknownFields, decoded_body
from openai_bls.api.common.large_bodies import check_count
from openai_bls.api.common.unsupported import refuse_unsupported
from openai_bls.api.responses import schema
from openai_bls.api.responses.conversation import Conversation
from openai_bls.api.responses.errors import Origin, translate
from openai_bls.api.responses.items import Item, item_parts, read_input
from openai_bls.api.responses.store import Inputs, References, Snapshot, Stored
from openai_bls.api.responses.tools.choice import chat_choice
from openai_bls.api.responses.tools.echo import echo
from openai_bls.api.responses.tools.items import item_tools
from openai_bls.api.responses.tools.reading import Placed, count_tools, read_tools
from openai_bls.api.responses.tools.toolbox import Toolbox
from openai_bls.core.errors import ApiError, InvalidRequestError
from openai_bls.core.request import ValidRequest

BodyT = TypeVar("BodyT", bound=schema.CountRequest)

_DECODERS: dict[type[schema.CountRequest], Any] = {
    cls: msgspec.json.Decoder(cls) for cls in (schema.CountRequest, schema.CreateRequest)
}
_COMPACT = msgspec.json.Decoder(schema.CompactRequest)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a response."""

    chat: ValidRequest
    """The chat completion that answers it."""
    origins: list[Origin]
    """Origins of the chat's messages, in order."""
    tools: Toolbox
    """All tools, those of items included."""
    shown_tools: list[dict[str, Any]]
    """Tools of `tools` that the client runs, as the response shows them: made here, since there may be thousands."""
    inputs: list[Item]
    """Input items of this request."""
    kept: Inputs
    """`inputs` as the stores keep them, with what they continue."""
    previous: Stored | Snapshot | None
    """The response that it continues, or the conversation that it is made in."""
    key: str
    """Name of its API key."""

    @property
    def conversation_id(self) -> str | None:
        """Id of the conversation that it is made in."""
        return self.previous.conversation_id if isinstance(self.previous, Snapshot) else None

    def translated(self, error: ApiError) -> ApiError:
        """The error of the chat completion with this API's field names."""
        translate(error, self.origins, self.tools.params)
        return error


class CreateRequest(Request, frozen=True, kw_only=True):
    """A request for a response that is to be generated."""

    body: schema.CreateRequest


def parse_create(
    body: bytes, references: References, max_items: int | None = None, unknown: UnknownFields = "refuse"
) -> CreateRequest:
    """The request in a body of /v1/responses.

    Args:
        body: JSON text.
        references: stored items that it may refer to.
        max_items: see `check_count`.
        unknown: treatment of unknown fields.

    Raises:
        InvalidRequestError: the body is not JSON, or a field is unknown, of the wrong type, out of range or not
            honoured; `param` names the field.
    """
    ignored = IgnoredFields(unknown)
    given = _decode(body, schema.CreateRequest, ignored)
    chat = _generation(given) | {"stream": given.stream}
    wanted = _request(given, chat, references, CreateRequest, max_items, ignored, body=given)
    # A background response is polled, and log-probabilities belong to the item that is open when they come.
    if not given.background and wanted.chat.logprobs is None:
        return wanted
    return msgspec.structs.replace(wanted, chat=msgspec.structs.replace(wanted.chat, in_pieces=True))


def parse_count(
    body: bytes, references: References, max_items: int | None = None, unknown: UnknownFields = "refuse"
) -> Request:
    """The request in a body of /v1/responses/input_tokens; see `parse_create`."""
    ignored = IgnoredFields(unknown)
    return _request(_decode(body, schema.CountRequest, ignored), {}, references, Request, max_items, ignored)


def parse_compact(
    body: bytes,
    references: References,
    max_items: int | None = None,
    unknown: UnknownFields = "refuse",
    *,
    question: str,
) -> Request:
    """The request in a body of /v1/responses/compact, which `question` ends; see `parse_create`."""
    ignored = IgnoredFields(unknown)
    given = decoded_body(_COMPACT, body, fault, ignored)
    refuse_unsupported({name: getattr(given, name) for name in ("image",)}, schema.UNSUPPORTED)
    same = {name: getattr(given, name) for name in ("model", "input", "instructions", "previous_response_id")}
    return _request(schema.CountRequest(**same), {}, references, Request, max_items, ignored, question)


def _decode(body: bytes, cls: type[BodyT], ignored: IgnoredFields) -> BodyT:
    given: BodyT = decoded_body(_DECODERS[cls], body, fault, ignored)
    reasoning = given.reasoning or schema.Reasoning()
    values = {name: getattr(given, name, UNSET) for name in schema.UNSUPPORTED}
    values |= {f"reasoning.{name}": getattr(reasoning, name) for name in schema.Reasoning.__struct_fields__}
    refuse_unsupported(values, schema.UNSUPPORTED)
    return given


RequestT = TypeVar("RequestT", bound=Request)


def _request(
    given: schema.CountRequest,
    chat: dict[str, Any],
    references: References,
    cls: type[RequestT],
    max_items: int | None,
    ignored: IgnoredFields,
    question: str | None = None,
    **more: Any,
) -> RequestT:
    previous = _previous(given, references)
    if given.input is None and previous is None:
        raise InvalidRequestError(
            "One of 'input', 'previous_response_id' or 'conversation' must be provided.",
            param="input",
            code="missing_required_parameter",
        )
    if isinstance(given.input, list):
        check_count(sum(map(item_parts, given.input)), "input", max_items)
    check_count(count_tools(given.tools), "tools", max_items)
    inputs = read_input(given.input, references.take, ignored)
    if given.text is not None and given.text.verbosity is not None:
        ignored.add("text.verbosity")
    earlier = [] if previous is None else previous.items
    stored = "conversation" if isinstance(previous, Snapshot) else "previous_response_id"
    given_tools = read_tools(given.tools or [], "tools", ignored)
    toolbox = Toolbox([given_tools, *_further_tools(earlier, stored, inputs, ignored)])
    conversation = Conversation(toolbox)
    if given.instructions is not None:
        conversation.instruct(given.instructions)
    conversation.extend(earlier, stored)
    conversation.extend(inputs, "input" if isinstance(given.input, str) else None)
    if not conversation.messages:
        raise InvalidRequestError("'input' is empty.", param="input")
    if question is not None:
        conversation.ask(question)
    # A summary calls nothing.
    tools = toolbox.chat_tools() if question is None else []
    chat |= _prompt(given, tools, toolbox, ignored)
    chat["messages"] = conversation.messages
    try:
        valid = parse_object("chat.completions", chat)
    except ApiError as error:
        translate(error, conversation.origins, toolbox.params)
        raise
    valid = msgspec.structs.replace(valid, ignored=ignored.names, thinking_params=_thinking_params(given))
    return cls(
        chat=with_image_params(valid, conversation.images),
        origins=conversation.origins,
        tools=toolbox,
        shown_tools=echo(given_tools),
        inputs=inputs,
        kept=Inputs(inputs, previous),
        previous=previous,
        key=references.key,
        **more,
    )


def _thinking_params(given: schema.CountRequest) -> tuple[str, ...]:
    return ("reasoning.effort",) if given.reasoning is not None and given.reasoning.effort is not None else ()


def _previous(given: schema.CountRequest, references: References) -> Stored | Snapshot | None:
    response_id, conversation_id = given.previous_response_id, schema.conversation_id(given)
    if conversation_id is not None:
        if response_id is not None:
            raise InvalidRequestError(
                "'conversation' and 'previous_response_id' cannot be used together.", param="previous_response_id"
            )
        return references.conversation(conversation_id)
    if response_id is None:
        return None
    previous = references.response(response_id)
    if previous is None:
        raise InvalidRequestError(
            f"Previous response with id '{response_id}' not found. Responses are kept in memory, the latest ones, "
            "unless 'store' is false.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return previous


def _further_tools(
    earlier: list[Item], stored: str, inputs: list[Item], ignored: IgnoredFields
) -> Iterator[list[Placed]]:
    """The tools of the stored items that a request continues, and of its own items."""
    for item in earlier:
        # They were named when they came, and are not in the body.
        yield [tool._replace(param=stored) for tool in item_tools(item, stored, IgnoredFields())]
    for at, item in enumerate(inputs):
        if "tools" in item:
            yield item_tools(item, f"input[{at}]", ignored)


def _prompt(
    given: schema.CountRequest, tools: list[dict[str, Any]], toolbox: Toolbox, ignored: IgnoredFields
) -> dict[str, Any]:
    """Fields of the chat completion that make the prompt."""
    chat: dict[str, Any] = {"model": given.model, "parallel_tool_calls": given.parallel_tool_calls}
    if tools:
        chat["tools"] = tools
    if tools or given.tool_choice != "auto":
        # Without tools there is nothing to choose from, and clients say "auto" all the same.
        chat["tool_choice"] = chat_choice(given.tool_choice, toolbox, ignored)
    if given.text is not None:
        chat["response_format"] = _format(given.text.format)
    if given.reasoning is not None:
        chat["reasoning_effort"] = given.reasoning.effort
    return chat | {name: value for name in schema.PASSED_ON if (value := getattr(given, name, UNSET)) is not UNSET}


def _generation(given: schema.CreateRequest) -> dict[str, Any]:
    """Fields of the chat completion that make the answer."""
    if given.stream_options is not None and not given.stream:
        raise InvalidRequestError("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    check_include(given.include or ())
    if given.background and given.store is False:
        raise InvalidRequestError(
            "A 'background' response is stored until it is asked for: 'store' may not be false.", param="store"
        )
    chat: dict[str, Any] = {"max_completion_tokens": given.max_output_tokens}
    if schema.LOGPROBS in (given.include or ()):
        chat |= {"logprobs": True, "top_logprobs": given.top_logprobs}
    elif given.top_logprobs:
        raise InvalidRequestError(
            f"'top_logprobs' is only allowed when 'include' has '{schema.LOGPROBS}'.", param="top_logprobs"
        )
    return chat


def check_include(values: Sequence[str]) -> None:
    """Refuse values of `include` that are not supported.

    Raises:
        InvalidRequestError: one is not.
    """
    for at, value in enumerate(values):
        if value not in schema.INCLUDABLE:
            raise InvalidRequestError(
                f"'include' of {value!r} is not supported: there are {', '.join(map(repr, schema.INCLUDABLE))}.",
                param=f"include[{at}]",
                code="unsupported_parameter",
            )


def _format(form: TextFormat | JsonObjectFormat | schema.JsonSchemaFormat | None) -> Any:
    if isinstance(form, JsonObjectFormat):
        return {"type": "json_object"}
    if isinstance(form, schema.JsonSchemaFormat):
        named = {"name": form.name, "description": form.description, "schema": form.schema, "strict": form.strict}
        return {"type": "json_schema", "json_schema": {k: v for k, v in named.items() if v is not None}}
    return None
