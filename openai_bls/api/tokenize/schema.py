"""Bodies of /tokenize and /detokenize, under the names that vLLM has for them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta

from openai_bls.api.chat.messages import Message
from openai_bls.api.chat.schema import TokenId
from openai_bls.api.chat.validation import parse_object
from openai_bls.api.common.bodies import convert
from openai_bls.api.common.documented import PER_TOKEN, documented
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import ValidRequest


class PromptBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Raw text to tokenize."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool | None = None
    """True unless given."""
    return_token_strs: bool | None = None
    """The text of each token too."""


class ChatBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A conversation to tokenize: the fields of a chat completion that its prompt depends on, checked as there."""

    model: Any = UNSET
    messages: Annotated[Any, documented(Annotated[list[Message], Meta(min_length=1), PER_TOKEN])]
    tools: Any = UNSET
    tool_choice: Any = UNSET
    documents: Any = UNSET
    reasoning_effort: Any = UNSET
    chat_template: Any = UNSET
    chat_template_kwargs: Any = UNSET
    add_generation_prompt: Any = UNSET
    continue_final_message: Any = UNSET
    add_special_tokens: Any = UNSET
    return_token_strs: bool | None = None
    """The text of each token too."""


class DetokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Token ids to turn into text."""

    model: str | None = None
    tokens: list[TokenId]


class TokenizeAnswer(msgspec.Struct, frozen=True):
    """Token ids of a prompt."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None
    """The text of each token; one that is only a part of a character is `bytes:` and its bytes."""


class DetokenizeAnswer(msgspec.Struct, frozen=True):
    """Text of token ids, special tokens included."""

    prompt: str


def parse_tokenize(body: dict[str, Any], max_items: int | None = None) -> tuple[ValidRequest, bool]:
    """The generation whose prompt is to be tokenized, and whether the text of each token is wanted.

    Args:
        body: body of the request.
        max_items: see `check_count`.

    Raises:
        InvalidRequestError: `param` names the field at fault.
    """
    if "messages" not in body:
        raw = convert(body, PromptBody)
        completion = {"model": raw.model, "prompt": raw.prompt, "add_special_tokens": raw.add_special_tokens}
        return parse_object("completions", completion), bool(raw.return_token_strs)
    if "prompt" in body:
        raise InvalidRequestError("Give 'prompt' or 'messages', not both.", param="prompt")
    chat = convert(body, ChatBody)
    given = {name: value for name, value in msgspec.structs.asdict(chat).items() if value is not UNSET}
    wants_strings = bool(given.pop("return_token_strs"))
    return parse_object("chat.completions", given, max_items), wants_strings
