"""Input items: validated and put in the form in which a response lists them.

That form is OpenAI's own, as plain objects: every item with `id`, `type` and `status`, content as an array of parts.
Output items have it by nature, so that a conversation is one list of items.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, get_args

import msgspec

from openai_bls.api.common.bodies import fault_at
from openai_bls.api.common.documented import PER_TOKEN
from openai_bls.api.common.encoding import new_id
from openai_bls.api.common.fields import IgnoredFields, converted_fields
from openai_bls.api.common.unsupported import Unsupported, refuse_unsupported
from openai_bls.api.responses.sealing import is_sealed_here, unseal
from openai_bls.api.responses.tools import items as tool_items
from openai_bls.api.responses.tools.reading import count_tools, without_places
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.media import ImageDetail

Item = dict[str, Any]
Find = Callable[[str, str], Item]
"""The stored item of an id, for a reference whose path in the body is given too; raises InvalidRequestError."""
Status = Literal["in_progress", "completed", "incomplete"]


class InputText(msgspec.Struct, tag_field="type", tag="input_text", forbid_unknown_fields=True):
    """Text for the model."""

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset({"prompt_cache_breakpoint"})

    text: str


class InputImage(msgspec.Struct, tag_field="type", tag="input_image", forbid_unknown_fields=True):
    """An image for the model, by one of `image_url` and `file_id`."""

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset({"prompt_cache_breakpoint"})

    image_url: str | None = None
    """A `data:` URI with base64, or an http or https URL of a host that the setting `image_url_hosts` allows."""
    file_id: str | None = None
    """A file of /v1/files with the purpose `vision` or `user_data`."""
    detail: ImageDetail | None = None
    """`low` scales the image down to fit 512 x 512 pixels; `high`, `original` and `auto` take it as it is."""


class OutputText(msgspec.Struct, tag_field="type", tag="output_text", forbid_unknown_fields=True):
    """The model's text, fed back; only `text` is read."""

    FROM_A_SERVER: ClassVar[bool] = True

    text: str
    annotations: Any = None
    logprobs: Any = None


class Refusal(msgspec.Struct, tag_field="type", tag="refusal", forbid_unknown_fields=True):
    """The model's refusal, fed back."""

    refusal: str


class SummaryText(msgspec.Struct, tag_field="type", tag="summary_text", forbid_unknown_fields=True):
    """A summary of reasoning."""

    text: str


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text", forbid_unknown_fields=True):
    """Reasoning itself."""

    text: str


class Message(msgspec.Struct, tag_field="type", tag="message", forbid_unknown_fields=True):
    """A message of any role."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[list[InputText | InputImage | OutputText | Refusal], PER_TOKEN]
    id: str | None = None
    status: Status | None = None
    phase: str | None = None
    """A label of OpenAI's models: accepted, the served ones have no place for it."""


class FunctionCall(msgspec.Struct, tag_field="type", tag="function_call", forbid_unknown_fields=True):
    """A call that the model made."""

    FROM_A_SERVER: ClassVar[bool] = True

    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None
    created_by: str | None = None
    namespace: str | None = None
    """Namespace of the function."""
    # unsupported: see UNSUPPORTED_IN_ITEMS
    caller: Any = None
    background: Any = msgspec.field(default=None, name="async")


class FunctionCallOutput(msgspec.Struct, tag_field="type", tag="function_call_output", forbid_unknown_fields=True):
    """A call's result."""

    call_id: str
    output: str | list[InputText | InputImage]
    id: str | None = None
    name: str | None = None
    status: Status | None = None
    created_by: str | None = None
    namespace: str | None = None
    # unsupported: see UNSUPPORTED_IN_ITEMS
    caller: Any = None


class CustomToolCallOutput(msgspec.Struct, tag_field="type", tag="custom_tool_call_output", forbid_unknown_fields=True):
    """The result of a custom tool's call."""

    call_id: str
    output: str | list[InputText | InputImage]
    id: str | None = None
    name: str | None = None
    status: Status | None = None
    created_by: str | None = None
    # unsupported: see UNSUPPORTED_IN_ITEMS
    caller: Any = None


class Reasoning(msgspec.Struct, tag_field="type", tag="reasoning", forbid_unknown_fields=True):
    """Earlier reasoning, fed back."""

    FROM_A_SERVER: ClassVar[bool] = True

    summary: list[SummaryText] = []
    content: list[ReasoningText] | None = None
    id: str | None = None
    status: Status | None = None
    encrypted_content: str | None = None


class Compaction(msgspec.Struct, tag_field="type", tag="compaction", forbid_unknown_fields=True):
    """A summary that /v1/responses/compact has made."""

    encrypted_content: str
    id: str | None = None
    created_by: str | None = None


class ItemReference(msgspec.Struct, tag_field="type", tag="item_reference", forbid_unknown_fields=True):
    """An item of a stored response."""

    id: str


OwnItem = (
    Message
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCallOutput
    | tool_items.ToolItem
    | Reasoning
    | Compaction
    | ItemReference
)
InputItem = OwnItem | tool_items.HostedItem

OPTIONAL_TAGS = frozenset({Message, ItemReference})
"""Items that may leave their type out."""

_TOOL_ITEMS = get_args(tool_items.ToolItem)
_KINDS: dict[str, Any] = {str(kind.__struct_config__.tag): kind for kind in get_args(OwnItem)}

UNSUPPORTED_IN_ITEMS = {
    "caller": Unsupported(({"type": "direct"},), "there is no programmatic tool calling here"),
    "async": Unsupported((False,), "calls are answered in the next request"),
}
"""Field of an item → the values at which it may be given; null always may."""


def item_parts(item: dict[str, Any]) -> int:
    """Parts of an item as a client sent it, each of which takes at least one token."""
    lists = (parts for name in ("content", "output", "summary") if isinstance(parts := item.get(name), list))
    tools = item.get("tools")
    return max(1, sum(map(len, lists)) + (count_tools(tools) if isinstance(tools, list) else 0))


def read_input(
    given: str | list[dict[str, Any]] | None, find: Find, ignored: IgnoredFields, field: str = "input"
) -> list[Item]:
    """`input` as items.

    Args:
        given: the field.
        find: looks up a referenced item.
        ignored: receiver of the names of what is taken without effect.
        field: name of the body's field, in the errors.

    Raises:
        InvalidRequestError: an item is not as it should be, or of a kind that is not supported; `param` is its path.
    """
    if given is None:
        return []
    if isinstance(given, str):
        return [_message(Message(role="user", content=given), field)]
    return [_read(item, f"{field}[{at}]", find, ignored) for at, item in enumerate(given)]


def _read(given: dict[str, Any], at: str, find: Find, ignored: IgnoredFields) -> Item:
    # Both may leave their type out.
    kind = given.get("type") or ("message" if "role" in given or "content" in given else "item_reference")
    struct = _KINDS.get(kind) if isinstance(kind, str) else None
    if struct is None and isinstance(kind, str) and kind in tool_items.HOSTED_ITEMS:
        return tool_items.hosted_item(given, at, ignored)
    if struct is None:
        known = ", ".join(_KINDS)
        raise InvalidRequestError(
            f"Input items of type {kind!r} are not supported; supported are {known}.", param=f"{at}.type"
        )
    refuse_unsupported(given, UNSUPPORTED_IN_ITEMS, f"{at}.")
    item: Any = converted_fields({**given, "type": kind}, struct, fault_at(at), ignored, f"{at[: at.index('[')]}[]")
    if isinstance(item, ItemReference):
        return find(item.id, f"{at}.id")
    if isinstance(item, _TOOL_ITEMS):
        return tool_items.listed(item, at, ignored)
    return _listed(item, at, ignored)


def _listed(item: Any, at: str, ignored: IgnoredFields) -> Item:
    if isinstance(item, Message):
        return _message(item, at)
    if isinstance(item, FunctionCall):
        return {
            "id": item.id or new_id("fc_"),
            "type": "function_call",
            "status": item.status or "completed",
            "call_id": item.call_id,
            "name": item.name,
            **({} if item.namespace is None else {"namespace": item.namespace}),
            "arguments": item.arguments,
        }
    if isinstance(item, FunctionCallOutput | CustomToolCallOutput):
        return _output(item, at)
    if isinstance(item, Reasoning):
        return _reasoning(item, at, ignored)
    assert isinstance(item, Compaction)
    unseal("compaction", item.encrypted_content, f"{at}.encrypted_content")
    return compaction(item.encrypted_content, item.id)


def _message(message: Message, at: str) -> Item:
    """Parts are named for the role, whatever they were called."""
    parts = [InputText(message.content)] if isinstance(message.content, str) else message.content
    content: list[dict[str, Any]] = []
    for index, part in enumerate(parts):
        if isinstance(part, Refusal):
            if message.role != "assistant":
                raise InvalidRequestError(
                    "Only an assistant's message has refusals.", param=f"{at}.content[{index}].type"
                )
            content.append({"type": "refusal", "refusal": part.refusal})
        elif isinstance(part, InputImage):
            if message.role != "user":
                raise InvalidRequestError("Only a user's message has images.", param=f"{at}.content[{index}].type")
            content.append(_image(part, f"{at}.content[{index}]"))
        elif message.role == "assistant":
            content.append({"type": "output_text", "text": part.text, "annotations": [], "logprobs": []})
        else:
            content.append({"type": "input_text", "text": part.text})
    return {
        "id": message.id or new_id("msg_"),
        "type": "message",
        "status": message.status or "completed",
        "role": message.role,
        "content": content,
    }


def _image(image: InputImage, at: str) -> dict[str, Any]:
    if (image.image_url is None) == (image.file_id is None):
        raise InvalidRequestError(f"'{at}' must have 'image_url' or 'file_id', one of them.", param=at)
    shown = {"type": "input_image", "image_url": image.image_url, "file_id": image.file_id}
    return {**shown, "detail": image.detail or "auto"}


def _output(item: FunctionCallOutput | CustomToolCallOutput, at: str) -> Item:
    output = item.output
    if isinstance(output, list):
        parts = [
            _image(part, f"{at}.output[{index}]")
            if isinstance(part, InputImage)
            else {"type": "input_text", "text": part.text}
            for index, part in enumerate(output)
        ]
    result: Item = {
        "id": item.id or new_id("fco_" if isinstance(item, FunctionCallOutput) else "ctco_"),
        "type": item.__struct_config__.tag,
        "status": item.status or "completed",
        "call_id": item.call_id,
        "output": output if isinstance(output, str) else parts,
    }
    for name in ("name", "namespace"):
        value = getattr(item, name, None)
        if value is not None:
            result[name] = value
    return result


def _reasoning(item: Reasoning, at: str, ignored: IgnoredFields) -> Item:
    texts = [part.text for part in item.content or ()]
    if item.encrypted_content and not is_sealed_here(item.encrypted_content):
        # Another service's, which it alone can read.
        ignored.add(f"{without_places(at)}.encrypted_content")
    elif item.encrypted_content:
        sealed = unseal("reasoning", item.encrypted_content, f"{at}.encrypted_content")
        # Both are the same; what is shown counts, for it can be changed.
        texts = texts or [sealed]
    return {
        "id": item.id or new_id("rs_"),
        "type": "reasoning",
        "status": item.status or "completed",
        "summary": [{"type": "summary_text", "text": part.text} for part in item.summary],
        "content": [{"type": "reasoning_text", "text": text} for text in texts],
    }


def compaction(sealed: str, item_id: str | None = None) -> Item:
    """A compaction item around a sealed summary."""
    return {"id": item_id or new_id("cmp_"), "type": "compaction", "encrypted_content": sealed}


def reasoning_text(item: Item) -> str:
    """The text of a reasoning item's content."""
    return "".join(part["text"] for part in item.get("content") or ())
