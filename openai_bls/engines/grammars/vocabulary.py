"""A model's vocabulary as grammars see it, read from tokenizer.json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from openai_bls.engines.grammars.matcher import Bitmask
from openai_bls.engines.grammars.trial_worker import SPECIAL
from openai_bls.output.detokenizer import factory, tokenizer_json
from openai_bls.output.detokenizer.base import Vocabulary


class GrammarVocabulary(msgspec.Struct, frozen=True):
    """A model's vocabulary as grammars see it."""

    text: list[bytes]
    """Bytes of each token by its id; empty for what is never text."""
    is_text: Bitmask
    """Tokens that are text in every grammar."""
    markers: dict[str, int]
    """Ids of special tokens by their text, which are text only to grammars that spell them."""

    @property
    def tokens(self) -> list[bytes]:
        """The tokens as `trial_worker.TokenizerWrapper` takes them."""
        return [text or SPECIAL + b"<%d>" % token_id for token_id, text in enumerate(self.text)]


def read(folder: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> GrammarVocabulary:
    """Read the vocabulary of a model; takes up to seconds.

    Args:
        folder: folder with tokenizer.json.
        vocab_size: size of the model's vocabulary, which may be larger than the tokenizer's.
        eos_token_ids: ids that are never text, whatever the tokenizer says.
    """
    content = (folder / "tokenizer.json").read_bytes()
    plain = tokenizer_json.read(content)
    if plain is not None:
        vocabulary = plain[0]
    else:
        from tokenizers import Tokenizer

        vocabulary = Vocabulary.of(Tokenizer.from_buffer(content))
    bytes_of = factory.load(folder).token_bytes
    text = [b""] * vocab_size
    for token_id in vocabulary.tokens:
        if token_id < vocab_size and token_id not in eos_token_ids:
            text[token_id] = bytes_of(token_id)
    is_text = (token_id for token_id, raw in enumerate(text) if raw and token_id not in vocabulary.special_ids)
    markers = {
        vocabulary.tokens[token_id]: token_id
        for token_id in vocabulary.special_ids
        if token_id < vocab_size and text[token_id]
    }
    return GrammarVocabulary(text, bitmask(is_text, vocab_size), markers)


def words(vocab_size: int) -> int:
    """Words of a bitmask."""
    return -(-vocab_size // 32)


def bitmask(token_ids: Iterable[int], vocab_size: int) -> Bitmask:
    """The bitmask of these ids; those outside the vocabulary are left out."""
    bits = np.zeros(words(vocab_size) * 32, dtype=np.uint8)
    bits[[token_id for token_id in token_ids if 0 <= token_id < vocab_size]] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
