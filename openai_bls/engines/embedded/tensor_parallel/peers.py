"""Interface between a model's code and the ranks that share the model."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
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

    def silence(self) -> AbstractContextManager[None]:
        """Passes of this rank for itself, without the others' part of the sums."""
        ...

    def write_adapter(self, slot: int, folder: Path) -> None:
        """Let the other ranks put their part of an adapter into a slot; raises `LoraError` if one cannot."""
        ...


class Shard(Protocol):
    """The part of a model that one rank has."""

    largest: dict[str, torch.Tensor]
    """Path of a layer that is split by its inputs → largest weight of each output over all of them, [outputs, 1]; empty
    where weights are not quantized here."""

    def of_outputs(self, module: str, whole: torch.Tensor) -> torch.Tensor:
        """This rank's rows of `whole`, which has one for each output of a module."""
        ...

    def of_inputs(self, module: str, whole: torch.Tensor) -> torch.Tensor:
        """This rank's columns of `whole`, which has one for each input of a module."""
        ...

    def whole_sizes(self, module: str, inputs: int, outputs: int) -> tuple[int, int]:
        """Inputs and outputs of a whole module, of which this rank has these."""
        ...


def peers_of(model: Any) -> Peers | None:
    """The other ranks of a model; None if it is on one device alone."""
    found: Peers | None = getattr(model, "peers", None)
    return found


def shard_of(model: Any) -> Shard | None:
    """The part that `model` is; None if it is all."""
    found: Shard | None = getattr(model, "shard", None)
    return found
