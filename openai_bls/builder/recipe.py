"""Build of one engine, in types: what was asked for, and what each kind of engine decides about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from openai_bls.builder.lora import LoraOptions
from openai_bls.builder.target import Prepared
from openai_bls.builder.tensorrt_llm.plan.options import TensorRtLlmOptions
from openai_bls.builder.vllm.options import VllmOptions
from openai_bls.core.manifest import Dtype, EngineKind, FileRecord, Manifest, Quantization

Report = Callable[[str], None]
"""Called with one line per stage."""


class BuildOptions(msgspec.Struct, frozen=True):
    """Command line of `openai-bls build`."""

    model: str
    """A Hugging Face directory, or the id of a repository on the hub."""
    model_repository: Path
    revision: str = ""
    """Commit, tag or branch of a repository on the hub; empty is its default branch."""
    name: str = ""
    """Name of a further engine; empty is the default one."""
    engine: EngineKind = "transformers"
    dtype: Dtype = "auto"
    quant: Quantization = ""
    """Quantization of an engine of transformers; TensorRT-LLM and vLLM have theirs among their options."""
    max_model_len: int | None = None
    """Tokens; None takes the checkpoint's own."""
    max_batch_size: int = 64
    """Sequences."""
    max_tokens_in_kv_cache: int = 0
    """0 lets the engine choose."""
    served_model_name: str | None = None
    """Name on the API; None takes the directory's."""
    trust_remote_code: bool = False
    self_test: bool = True
    """Test an engine of transformers or vLLM before it replaces the previous one."""
    force: bool = False
    """Build even if nothing changed, or if the estimate says that it does not fit."""
    draft_model: str = ""
    """A Hugging Face directory or hub id; empty is none."""
    lora: LoraOptions = LoraOptions()
    tensorrt_llm: TensorRtLlmOptions = TensorRtLlmOptions()
    """Options of `engine` `tensorrt_llm` only."""
    vllm: VllmOptions = VllmOptions()
    """Options of `engine` `vllm` only."""


class Recipe(Protocol):
    """An engine to build, with everything about it decided."""

    manifest: Manifest
    """Manifest of the engine, without files."""
    configs: dict[str, str]
    """Name of a model → the text of its config.pbtxt."""
    key: str
    """Changes when the files that `fill` makes change, if the checkpoint's do not."""

    def fill(self, prepared: Prepared) -> dict[str, FileRecord]:
        """Fill all folders but the tokenizers', which are full; configuration files are there already.

        Returns:
            Sizes and hashes of the files in the folder `engine`, for the manifest.

        Raises:
            BuildError: it cannot be built; one sentence that says why.
        """
        ...
