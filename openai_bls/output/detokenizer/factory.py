"""Detokenizer factory: the module for a tokenizer, chosen by the decoder in its tokenizer.json.

================================================  ==================  ==========================
decoder                                           module              cost per token
================================================  ==================  ==========================
`ByteLevel`                                       `byte_level`        a dictionary look-up
`Metaspace`, or a sequence of `Replace`,          `byte_fallback`     a dictionary look-up
`Metaspace`, `ByteFallback`, `Fuse` and `Strip`
anything else, or none                            `windowed`          two decodes of a few ids
================================================  ==================  ==========================

The reference is `tokenizers.Tokenizer.decode`. transformers' `clean_up_tokenization_spaces`, which edits the text
afterwards ("do n't" to "don't"), is never applied: it is off in the checkpoints of language models, and transformers
ignores it for BPE.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openai_bls.output.detokenizer import tokenizer_json
from openai_bls.output.detokenizer.base import Detokenizer, DetokenizerFactory, Vocabulary
from openai_bls.output.detokenizer.byte_fallback import ByteFallbackFactory, DecoderSteps
from openai_bls.output.detokenizer.byte_level import ByteLevelFactory
from openai_bls.output.detokenizer.windowed import WindowedFactory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenizers import Tokenizer

__all__ = ["Detokenizer", "DetokenizerFactory", "from_tokenizer", "load"]


def load(path: Path | str) -> DetokenizerFactory:
    """Read a tokenizer.json, or the folder that holds one.

    Raises:
        FileNotFoundError: there is none.
        ValueError: the file is not a tokenizer.
    """
    file = Path(path)
    if file.is_dir():
        file /= "tokenizer.json"
    if not file.is_file():
        raise FileNotFoundError(f"no tokenizer.json at {file}")
    content = file.read_bytes()
    plain = tokenizer_json.read(content)
    factory = _from_tables(*plain) if plain is not None else None
    if factory is not None:
        return factory
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # The Rust library raises bare Exception.
        raise ValueError(f"{file} is not a tokenizer: {error}") from error
    return from_tokenizer(tokenizer)


def from_tokenizer(tokenizer: Tokenizer) -> DetokenizerFactory:
    """The factory for a tokenizer, whose vocabulary may not change afterwards."""
    vocabulary = Vocabulary.of(tokenizer)
    decoder = tokenizer.decoder
    factory = _from_tables(vocabulary, json.loads(decoder.__getstate__())) if decoder is not None else None
    return factory or WindowedFactory(tokenizer, vocabulary)


def _from_tables(vocabulary: Vocabulary, decoder: Mapping[str, Any]) -> DetokenizerFactory | None:
    """A factory that needs no more than the vocabulary, if there is one for the decoder."""
    steps = decoder.get("decoders", [decoder])
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return ByteLevelFactory(vocabulary)
    parsed = DecoderSteps.parse(decoder)
    return ByteFallbackFactory(vocabulary, parsed) if parsed is not None else None
