"""A tiny GGUF file as an engine of llama.cpp."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_bls.builder.source.gguf_file import describe
from openai_bls.core.manifest import Manifest, write_manifest
from openai_bls_llama_cpp import library
from openai_bls_llama_cpp.record import LlamaCppRecord
from tests.unit.builder.source.gguf_support import write_gguf
from tests.unit.core_support import write_tokenizer

needs_llama_cpp = pytest.mark.skipif(bool(library.problem()), reason=library.problem())


def write_engine(folder: Path, *, weights: str = "F16", context: int = 512, max_batch_size: int = 16) -> Path:
    """The version folder `folder` with an engine, which has no self-test; returns it.

    Args:
        folder: folder to make.
        weights: name of a `gguf.GGMLQuantizationType`.
        context: longest sequence in tokens.
        max_batch_size: sequences in flight.
    """
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(parents=True)
    file = write_gguf(folder / "tiny.gguf", weights=weights, context=context, merged=True)
    describe(file, checkpoint, lambda _: None)
    write_tokenizer(folder / "tokenizer")
    manifest = Manifest(
        engine="llama_cpp",
        model_name="tiny-qwen",
        max_model_len=context,
        max_batch_size=max_batch_size,
        created=1,
        record=LlamaCppRecord(version=library.RELEASE).fields(),
    )
    write_manifest(folder, manifest)
    return folder
