"""Comparison of a placed tokenizer with the checkpoint's own, and of texts with what comes back of them."""

from __future__ import annotations

import unicodedata
from typing import Any

from openai_bls.builder.tokenizer.samples import SAMPLES
from openai_bls.core.engine_types import PromptRequest
from openai_bls.core.errors import ApiError
from openai_bls.triton_models.preprocessing import rendering
from openai_bls.triton_models.preprocessing.cpu_limit import CpuLimitError

_MOST_ADDED = 200
_USER = {"role": "user", "content": " Hi there, 12 × 3?"}
_CHATS = (
    [_USER],
    [_USER, {"role": "assistant", "content": "36\n"}, {"role": "user", "content": "สวัสดี, thank you!"}],
)


def difference(original: Any, placed: Any) -> str | None:
    """Where two tokenizers of transformers make other token ids of a text or a chat; None if they nowhere do."""
    added = [token.content for _, token in sorted(original.added_tokens_decoder.items())][:_MOST_ADDED]
    texts = [*SAMPLES, *(f"a{token} b {token}\n" for token in added)]
    for text in texts:
        ids, wanted = (list(one(text)["input_ids"]) for one in (placed, original))
        if ids != wanted:
            return f"{text!r} is {ids} instead of {wanted}"
    for chat in _CHATS:
        of_chat, wanted_of_chat = _of_chat(placed, chat), _of_chat(original, chat)
        if of_chat != wanted_of_chat:
            return f"the conversation {chat} is {of_chat} instead of {wanted_of_chat}"
    return None


def lost_text(tokenizer: Any) -> list[tuple[str, str]]:
    """The sample texts that token ids do not hold whole, with what comes back of them.

    Unicode's composed form of a character counts as the character: many tokenizers compose what they read.
    """
    encoded = ((text, tokenizer.encode(text, add_special_tokens=False)) for text in SAMPLES)
    back = ((text, tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False)) for text, ids in encoded)
    return [(text, found) for text, found in back if _composed(text) != _composed(found)]


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _of_chat(tokenizer: Any, messages: list[dict[str, str]]) -> list[int] | None:
    """Token ids of a conversation; None if the template does not take it."""
    try:
        text = rendering.render(tokenizer, PromptRequest(messages=messages))
    except (ApiError, CpuLimitError):
        return None
    return list(tokenizer.encode(text, add_special_tokens=False))
