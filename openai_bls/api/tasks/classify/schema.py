"""Body and answer of /v1/classify, under the names that vLLM has for them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from openai_bls.api.chat.messages import Message
from openai_bls.api.chat.schema import Priority, TokenId
from openai_bls.api.chat.validation import parse_object
from openai_bls.api.common.bodies import PromptUsage, WithoutEffectOfUser, check_inputs, convert, texts_or_token_ids
from openai_bls.api.common.documented import PER_TOKEN, documented, limits
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import ValidRequest

_OF_CHATS = ("messages", "chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")


class ClassifyBody(WithoutEffectOfUser, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/classify."""

    input: str | Annotated[list[str | TokenId | list[TokenId]], limits(minItems=1)] | None = None
    """A string, strings, token ids, arrays of them; up to 2,048."""
    messages: Annotated[Any, documented(Annotated[list[Message], Meta(min_length=1), PER_TOKEN])] = UNSET
    """One conversation instead of `input`; refused with another Triton model."""
    model: str | None = None
    """May be left out where there is one model."""
    use_activation: bool | None = None
    """False gives what the model computes before its softmax or sigmoid; refused with another Triton model."""
    add_special_tokens: bool | None = None
    """True for `input`, false for `messages`, unless given; refused with another Triton model."""
    priority: Priority | None = None
    """Place in the queue, as of chat completions; refused with another Triton model."""
    # Checked as those of a chat completion, where they come with `messages`.
    chat_template: Any = UNSET
    chat_template_kwargs: Any = UNSET
    add_generation_prompt: Any = UNSET
    continue_final_message: Any = UNSET


class ClassificationData(msgspec.Struct, frozen=True):
    """One input's classes."""

    index: int
    label: str | None
    """The likeliest class; null where the model does not name its classes."""
    probs: list[float]
    num_classes: int


class ClassificationAnswer(msgspec.Struct, frozen=True):
    """The classes, in the order of the inputs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ClassificationData]
    usage: PromptUsage


class Parsed(msgspec.Struct, frozen=True):
    """A valid request: texts, rows of token ids, or one conversation."""

    body: ClassifyBody
    texts: list[str]
    token_ids: list[list[int]]
    chat: ValidRequest | None


def parse_classify(body: dict[str, Any], max_items: int | None = None) -> Parsed:
    """A valid request, whose token ids may be outside the vocabulary.

    Args:
        body: body of the request.
        max_items: see `check_count`.

    Raises:
        InvalidRequestError: `param` names the field at fault.
    """
    request = convert(body, ClassifyBody)
    if request.messages is UNSET or request.messages is None:
        for name in _OF_CHATS:
            if getattr(request, name) not in (UNSET, None):
                raise InvalidRequestError(f"'{name}' belongs to 'messages', which are not given.", param=name)
        if request.input is None:
            raise InvalidRequestError(
                "Missing required parameter: 'input' (or 'messages')", param="input", code="missing_required_parameter"
            )
        texts, token_ids = texts_or_token_ids(request.input, "input")
        check_inputs(len(texts) + len(token_ids), "input")
        return Parsed(request, texts, token_ids, None)
    if request.input is not None:
        raise InvalidRequestError("Give 'input' or 'messages', not both.", param="input")
    fields = {name: getattr(request, name) for name in (*_OF_CHATS, "add_special_tokens")}
    given = {name: value for name, value in fields.items() if value not in (UNSET, None)}
    # There is nothing to be generated after it.
    given.setdefault("add_generation_prompt", False)
    return Parsed(request, [], [], parse_object("chat.completions", given, max_items))
