"""Incremental detokenization: token ids in, the text that has become certain out.

What a tokenizer.json's decoder does decides which kind reads it:

================================================  ==================  ==========================
decoder                                           module              a token costs
================================================  ==================  ==========================
`ByteLevel`                                       `byte_level`        a dictionary look-up
`Metaspace`, or a sequence of `Replace`,          `byte_fallback`     a dictionary look-up
`Metaspace`, `ByteFallback`, `Fuse` and `Strip`
anything else, or none                            `windowed`          two decodes of a few ids
================================================  ==================  ==========================

The reference is `tokenizers.Tokenizer.decode`. transformers' `clean_up_tokenization_spaces`, which
edits the text afterwards ("do n't" to "don't"), is never applied: it is off in the checkpoints of
language models, and transformers itself ignores it for BPE, because it changes what was generated.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from openai_bls.text.base import Detokenizer, DetokenizerFactory, Vocabulary
from openai_bls.text.byte_fallback import ByteFallbackFactory, Recipe
from openai_bls.text.byte_level import ByteLevelFactory
from openai_bls.text.windowed import WindowedFactory

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Detokenizer", "DetokenizerFactory", "from_tokenizer", "load"]


def load(path: Path | str) -> DetokenizerFactory:
    """Read a tokenizer.json, or the folder that holds one.

    Raises:
        FileNotFoundError: there is none.
        ValueError: the file is not a tokenizer.
    """
    from tokenizers import Tokenizer

    file = Path(path)
    if file.is_dir():
        file /= "tokenizer.json"
    if not file.is_file():
        raise FileNotFoundError(f"no tokenizer.json at {file}")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # The Rust library raises bare Exception.
        raise ValueError(f"{file} is not a tokenizer: {error}") from error
    return from_tokenizer(tokenizer)


def from_tokenizer(tokenizer: Tokenizer) -> DetokenizerFactory:
    """Choose the kind that suits a tokenizer, whose vocabulary may not change afterwards."""
    vocabulary = Vocabulary(tokenizer)
    decoder = tokenizer.decoder
    if decoder is not None:
        description = json.loads(decoder.__getstate__())
        steps = description.get("decoders", [description])
        if [step["type"] for step in steps] == ["ByteLevel"]:
            return ByteLevelFactory(vocabulary)
        recipe = Recipe.parse(description)
        if recipe is not None:
            return ByteFallbackFactory(vocabulary, recipe)
    return WindowedFactory(tokenizer, vocabulary)
