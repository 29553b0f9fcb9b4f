"""Options of a build, as the command line gives them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from openai_bls.builder.options.lora import LoraOptions
from openai_bls.builder.options.tensorrt_llm import TensorRtLlmOptions
from openai_bls.builder.options.vllm import VllmOptions
from openai_bls.core.manifest import Dtype
from openai_bls.embedded.record import Quantization

DEFAULT_MODEL_LEN = 2048
"""Tokens of prompt and output, where the checkpoint does not say."""
DEFAULT_BATCH_SIZE = 64
"""Sequences in flight of all engines but llama.cpp, which may take fewer (`engines.llama_cpp.memory`)."""


class BuildOptions(msgspec.Struct, frozen=True):
    """Command line of `openai-bls build`."""

    model: str
    """A Hugging Face directory, or the id of a repository on the hub."""
    model_repository: Path
    revision: str = ""
    """Commit, tag or branch of a repository on the hub; empty is its default branch."""
    name: str = ""
    """Name of a further engine; empty is the default one."""
    engine: str = "transformers"
    dtype: Dtype = "auto"
    quant: Quantization = ""
    """Quantization of an engine of transformers; TensorRT-LLM and vLLM have theirs among their options."""
    max_model_len: int | None = None
    """Tokens; None takes the checkpoint's own."""
    max_batch_size: int | None = None
    """Sequences in flight; None takes the engine's default."""
    max_images: int | None = None
    """Images that a prompt may hold; None is a default for a vision-language model, else 0, which is text alone."""
    max_tokens_in_kv_cache: int = 0
    """0 lets the engine choose."""
    served_model_name: str | None = None
    """Name on the API; None takes the directory's."""
    trust_remote_code: bool = False
    self_test: bool = True
    """Test an engine of transformers, llama.cpp or vLLM before it replaces the previous one."""
    force: bool = False
    """Build even if nothing changed, or if the estimate says that it does not fit."""
    lora: LoraOptions = LoraOptions()
    tensorrt_llm: TensorRtLlmOptions = TensorRtLlmOptions()
    """Options of `engine` `tensorrt_llm` only."""
    vllm: VllmOptions = VllmOptions()
    """Options of `engine` `vllm` only."""

    @property
    def batch_size(self) -> int:
        """`max_batch_size`, or the default."""
        return DEFAULT_BATCH_SIZE if self.max_batch_size is None else self.max_batch_size
