"""Text encoding: token ids of raw text by transformers' tokenizer, or by a quicker way with the same result."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from openai_bls.triton_models.preprocessing.borders import border_pattern, parts, sample
from openai_bls.triton_models.preprocessing.token_cache import TokenCache

Encode = Callable[[str, bool], list[int]]
"""Token ids of a text; with True, the special tokens among them that the tokenizer adds by itself, such as a BOS."""

CACHED_CHARS = 8192
"""Characters from which a text's beginning is looked for in the cache: shorter ones are tokenized in 2 ms or so."""

# By which two ways of encoding are compared.
_SAMPLE = " Hello,  World! 1234 don't ÄÖ 你好 🙂\n\n\tx"


def best_encoding(tokenizer: Any, templates: Sequence[str], cache_bytes: int) -> Encode:
    """The quickest way to encode that gives what calling the tokenizer gives.

    Args:
        tokenizer: tokenizer of transformers.
        templates: chat templates of the model.
        cache_bytes: memory of the cache of tokens; 0 is none.
    """

    def plain(text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]
        return ids

    fast = _without_offsets(tokenizer, plain)
    if fast is None:
        return plain
    border = safe_border(tokenizer, fast, templates) if cache_bytes else None
    return fast if border is None else _with_cache(fast, border, cache_bytes)


def special_tokens(encode: Encode) -> tuple[list[int], list[int]]:
    """Token ids that the tokenizer adds by itself before a text (a BOS, say), and after it."""
    text, whole = encode("a", False), encode("a", True)
    for at in range(len(whole) - len(text) + 1):
        if whole[at : at + len(text)] == text:
            return whole[:at], whole[at + len(text) :]
    return [], []


def _without_offsets(tokenizer: Any, plain: Encode) -> Encode | None:
    """Encoding without the offsets into the text, a third of the time; None if the tokenizer has no such way."""
    from transformers import PreTrainedTokenizerFast

    names = ("__call__", "encode", "_encode_plus")
    if any(getattr(type(tokenizer), name, None) != getattr(PreTrainedTokenizerFast, name, None) for name in names):
        # A class that does something of its own with the text.
        return None
    encode_batch = tokenizer.backend_tokenizer.encode_batch_fast

    def encode(text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = encode_batch([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    same = all(encode(_SAMPLE, special) == plain(_SAMPLE, special) for special in (False, True))
    return encode if same else None


def safe_border(tokenizer: Any, encode: Encode, templates: Sequence[str]) -> re.Pattern[str] | None:
    """Pattern of the places where texts can be cut without a change of their tokens; None if there are none.

    Args:
        tokenizer: tokenizer of transformers, with one of the tokenizers library inside.
        encode: gives the tokenizer's token ids.
        templates: chat templates of the model.
    """
    backend = tokenizer.backend_tokenizer
    # With a dropout each encoding is another; special tokens in a text may also be set to be no tokens.
    if getattr(backend.model, "dropout", None) or backend.encode_special_tokens:
        return None
    added = list(backend.get_added_tokens_decoder().values())
    named = [name for name in tokenizer.special_tokens_map.values() if isinstance(name, str)]
    border = border_pattern(added, "\n".join([*templates, *named]))
    if border is None:
        return None
    # The reasoning behind borders is put to the test.
    text = sample(added, border)
    before, after = special_tokens(encode)
    joined = [token_id for part in parts(text, border, 1) for token_id in encode(part, False)]
    same = encode(text, False) == joined and encode(text, True) == [*before, *joined, *after]
    return border if same else None


def _with_cache(encode: Encode, border: re.Pattern[str], cache_bytes: int) -> Encode:
    """Encoding with a cache for long texts."""
    before, after = special_tokens(encode)
    cache = TokenCache(lambda text: encode(text, False), border, cache_bytes)

    def cached(text: str, add_special_tokens: bool) -> list[int]:
        if len(text) < CACHED_CHARS:
            return encode(text, add_special_tokens)
        ids = cache.encode(text)
        return [*before, *ids, *after] if add_special_tokens else ids

    return cached
