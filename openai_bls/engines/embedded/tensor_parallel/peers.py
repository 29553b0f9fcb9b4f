"""Interface between a model's code and the ranks that share the model."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from openai_bls.engines.embedded.runner import BatchingConfig
from openai_bls.engines.embedded.runner_choice import RunnerChoice


class Peers(Protocol):
    """The other ranks of a model, as one of them sees them."""

    follows: bool
    """This is not rank 0: its steps come from there."""

    def attending(self, choice: RunnerChoice, loaded: str) -> AbstractContextManager[list[str]]:
        """Settle the model's attention on all ranks; yields a list which gets the other ranks' problems."""
        ...

    def begin(self, config: BatchingConfig, cache: Any) -> None:
        """Let the other ranks have a KV cache like `cache`; raises `EngineLoadError` if one cannot."""
        ...

    def step(self, io: Any, pair: int, *, padded: bool, longest: int | None) -> AbstractContextManager[None]:
        """A forward pass of continuous batching, with inputs that every rank has."""
        ...

    def share(self, token_ids: torch.Tensor) -> None:
        """Let all ranks have rank 0's token ids."""
        ...


def peers_of(model: Any) -> Peers | None:
    """The other ranks of a model; None if it is on one device alone."""
    found: Peers | None = getattr(model, "peers", None)
    return found
