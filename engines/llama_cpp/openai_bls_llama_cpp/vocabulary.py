"""Token ids of texts as llama.cpp makes them of a GGUF file, whose weights are not read."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from openai_bls.core.manifest import EngineLoadError, short
from openai_bls_llama_cpp import library


def token_ids(file: Path, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text; special tokens in it are such, and none are added.

    Raises:
        EngineLoadError: llama.cpp is not there or does not read the file; one sentence.
    """
    lib = library.load()
    library.take_error()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(str(file).encode(), params)
    if not model:
        raise EngineLoadError(f"llama.cpp does not read the vocabulary of {short(file)}: {library.take_error()}")
    try:
        vocabulary = lib.llama_model_get_vocab(model)
        found = []
        for text in texts:
            encoded = text.encode()
            room = len(encoded) + 2
            ids = (ctypes.c_int32 * room)()
            count = lib.llama_tokenize(vocabulary, encoded, len(encoded), ids, room, False, True)
            found.append(list(ids[: max(0, count)]))
        return found
    finally:
        lib.llama_model_free(model)
