"""What the manifests of a repository's engines say about ranks.

Read here with an eye for these fields only: `openai_bls.core.manifest` has the whole contract, and the engine itself
refuses a manifest that does not keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from openai_bls.launcher.checks import engine_models

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_MANIFEST = "engine.json"


class TensorRtLlmHead(msgspec.Struct, frozen=True):
    """The part of a TensorRT-LLM engine's record that concerns its ranks."""

    backend: str = "python"
    """`python` is the LLM API, which starts its ranks itself; `cpp` is the C++ backend, started once a rank."""
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1

    @property
    def ranks(self) -> int:
        """How many GPUs the engine was built for."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


class EngineHead(msgspec.Struct, frozen=True):
    """The part of a manifest that concerns ranks."""

    engine: str = ""
    tensorrt_llm: TensorRtLlmHead | None = None


def engine_heads(repository: Path, names: Sequence[str]) -> dict[str, EngineHead]:
    """The engine models among `names`, each with what its manifest says; an empty head where that cannot be read."""
    return {name: _head(repository / name) for name in engine_models(names)}


def _head(model: Path) -> EngineHead:
    for manifest in sorted(model.glob(f"*/{_MANIFEST}")):
        try:
            return msgspec.json.decode(manifest.read_bytes(), type=EngineHead)
        except (OSError, msgspec.DecodeError):
            break
    return EngineHead()
