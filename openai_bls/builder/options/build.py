"""Options of a build, as the command line gives them."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from openai_bls.builder.options.lora import LoraOptions
from openai_bls.core.manifest import Dtype

DEFAULT_MODEL_LEN = 2048
"""Tokens of prompt and output, where the checkpoint does not say."""
DEFAULT_BATCH_SIZE = 64
"""Sequences in flight, unless the engine has another default."""


OwnT = TypeVar("OwnT", bound=msgspec.Struct)


class BuildOptions(msgspec.Struct, frozen=True):
    """Command line of `openai-bls build`."""

    model: str
    """A Hugging Face directory, or the id of a repository on the hub."""
    model_repository: Path
    engine: str
    """Name of the engine's plug-in."""
    revision: str = ""
    """Commit, tag or branch of a repository on the hub; empty is its default branch."""
    name: str = ""
    """Name of a further engine; empty is the default one."""
    dtype: Dtype = "auto"
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
    """Test the engine before it replaces the previous one, where its recipe has a test."""
    force: bool = False
    """Build even if nothing changed, or if the estimate says that it does not fit."""
    lora: LoraOptions = LoraOptions()
    own: msgspec.Struct | None = None
    """Options that only the engine has; None is its defaults."""

    @property
    def batch_size(self) -> int:
        """`max_batch_size`, or the default."""
        return DEFAULT_BATCH_SIZE if self.max_batch_size is None else self.max_batch_size

    def own_as(self, cls: type[OwnT]) -> OwnT:
        """`own`, or the defaults of `cls`."""
        return self.own if isinstance(self.own, cls) else cls()
