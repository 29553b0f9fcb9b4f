"""Options of a build that mean nothing for llama.cpp."""

from __future__ import annotations

from collections.abc import Collection

from openai_bls.core.manifest import BuildError

_WHY = {
    "dtype": "llama.cpp computes with the file's own numbers",
    "quant": "a GGUF file is quantized when it is made",
    "lora_dir": "it takes no adapters",
    "max_loras": "it takes no adapters",
    "max_lora_rank": "it takes no adapters",
    "tp_size": "it runs on this machine's CPU",
}
"""Option → why it means nothing for llama.cpp."""


def refuse_foreign(given: Collection[str]) -> None:
    """Refuse options that mean nothing for llama.cpp.

    Args:
        given: names of options, with underscores.

    Raises:
        BuildError: the first such option, and why.
    """
    for name, why in _WHY.items():
        if name in given:
            raise BuildError(f"--{name.replace('_', '-')} is not for --engine llama_cpp: {why}")
