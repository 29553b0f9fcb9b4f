"""Options of a build that mean nothing for llama.cpp."""

from __future__ import annotations

from collections.abc import Collection

from openai_bls.core.manifest import BuildError

_WHY = {
    "dtype": "llama.cpp computes with the file's own numbers",
    "quant": "a GGUF file is quantized when it is made",
    "lora_dir": "it takes no adapters; --engine transformers does",
    "max_loras": "it takes no adapters; --engine transformers does",
    "max_lora_rank": "it takes no adapters; --engine transformers does",
    "tp_size": "it runs on this machine's CPU",
}
"""Option → why it means nothing for llama.cpp."""


def foreign(given: Collection[str]) -> list[str]:
    """Options among `given`, with underscores, that other engines have and llama.cpp does not."""
    return [name for name in _WHY if name in given]


def refuse_foreign(given: Collection[str]) -> None:
    """Refuse options that mean nothing for llama.cpp.

    Raises:
        BuildError: the first such option, and why.
    """
    for name in foreign(given):
        raise BuildError(f"--{name.replace('_', '-')} is not for --engine llama_cpp: {_WHY[name]}")
