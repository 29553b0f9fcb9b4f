"""Parsing of a body of /v1/decisions: one chat completion for each question."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from openai_bls.api.chat.validation import parse_object, with_image_params
from openai_bls.api.common.bodies import fault
from openai_bls.api.common.fields import IgnoredFields, UnknownFields, converted_fields
from openai_bls.api.common.large_bodies import check_count
from openai_bls.api.decisions.conversation import Conversation
from openai_bls.api.decisions.questions import check_labels, text
from openai_bls.api.decisions.schema import DecisionsBody, Message, Question
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import ValidRequest

MAX_IMAGES = 128
"""Images of the prompts of all questions."""
_MESSAGE = re.compile(r"messages\[(?P<at>[0-9]{1,9})\]")


class Asked(NamedTuple):
    """A request for decisions."""

    input: ValidRequest
    """The input as a chat completion."""
    questions: list[Question]
    asks: list[ValidRequest]
    """Each question as a chat completion that has nothing else."""


def parse(body: dict[str, Any], max_items: int | None = None, unknown: UnknownFields = "refuse") -> Asked:
    """A valid request.

    Args:
        body: body of the request.
        max_items: see `check_count`.
        unknown: treatment of unknown fields.

    Raises:
        InvalidRequestError: `param` names the field at fault.
    """
    ignored = IgnoredFields(unknown)
    given = converted_fields(_tagged(body), DecisionsBody, fault, ignored)
    if not isinstance(given.input, str):
        check_count(sum(map(_parts, given.input)), "input", max_items)
        if any(isinstance(item, Message) and item.phase is not None for item in given.input):
            ignored.add("input[].phase")
    check_labels(given.questions)
    conversation = Conversation()
    conversation.extend(given.input)
    whole = _chat(conversation, given.model)
    asks: list[ValidRequest] = []
    for at, question in enumerate(given.questions):
        alone = Conversation()
        alone.ask(question.instructions, text(question), f"questions[{at}]")
        asks.append(_chat(alone, given.model))
    images = sum(len(whole.images) + len(ask.images) for ask in asks)
    if images > MAX_IMAGES:
        raise InvalidRequestError(
            f"The prompts of all questions have {images} images, those of the input each; at most {MAX_IMAGES} are "
            "supported.",
            param="questions",
            code="too_many_images",
        )
    return Asked(msgspec.structs.replace(whole, ignored=ignored.names), given.questions, asks)


def joined(first: ValidRequest, second: ValidRequest) -> ValidRequest:
    """A conversation that goes on with the one message of another, in the user's last message where it ends with one:
    many chat templates want the roles in turns."""
    prompt, messages, (asked,) = first.prompt, _messages(first), _messages(second)
    assert prompt is not None
    if messages[-1]["role"] == "user":
        last = messages[-1]
        messages = [*messages[:-1], {**last, "content": _both(last["content"], asked["content"])}]
    else:
        messages = [*messages, asked]
    prompt = msgspec.structs.replace(prompt, messages=messages)
    return msgspec.structs.replace(first, prompt=prompt, images=(*first.images, *second.images))


def own_place(error: InvalidRequestError, origins: Sequence[str] = ("input",)) -> InvalidRequestError:
    """An error of a chat completion with the names that this API has, in place of those of messages."""
    param = error.param or ""
    found = _MESSAGE.match(param)
    if found is None and param != "messages":
        return error
    at = 0 if found is None else int(found["at"])
    own = "input" if found is None else origins[min(at, len(origins) - 1)]
    for name in (param, "messages"):
        error.message = error.message.replace(f"'{name}'", f"'{own}'")
    error.param = own
    return error


def _messages(request: ValidRequest) -> list[dict[str, Any]]:
    return [] if request.prompt is None else request.prompt.messages or []


def _tagged(body: dict[str, Any]) -> dict[str, Any]:
    """The body with the type of messages, which may be left out."""
    given = body.get("input")
    if not isinstance(given, list):
        return body
    items = [{"type": "message", **item} if isinstance(item, dict) and "role" in item else item for item in given]
    return {**body, "input": items}


def _parts(item: Any) -> int:
    content = getattr(item, "content", None) or getattr(item, "output", None)
    return max(1, len(content)) if isinstance(content, list) else 1


def _chat(conversation: Conversation, model: str | None) -> ValidRequest:
    # A label is the beginning of the answer, no thought.
    chat = {"model": model, "messages": conversation.messages, "reasoning_effort": "none"}
    try:
        valid = parse_object("chat.completions", chat)
    except InvalidRequestError as error:
        raise own_place(error, conversation.origins) from None
    return with_image_params(msgspec.structs.replace(valid, thinking_params=()), conversation.images)


def _both(first: str | list[dict[str, Any]], second: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Contents of two messages as that of one, with a blank line between."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_as_parts(first), {"type": "text", "text": "\n\n"}, *_as_parts(second)]


def _as_parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
