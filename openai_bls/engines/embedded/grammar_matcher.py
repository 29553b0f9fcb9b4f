"""What restricts a sequence to a grammar, as an engine sees it; `engine.grammars` makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from openai_bls.core.engine_types import Grammar


class GrammarError(Exception):
    """A grammar that cannot be compiled, or not be followed further; the message is fit for a client's eyes."""


class Constraint(Protocol):
    """One sequence's place in a grammar. Used by one thread at a time.

    Anything here may raise: `GrammarError` where the grammar is to blame, say because it is beyond a library's limits,
    and whatever a library raises by mistake.
    """

    def fill(self, mask: npt.NDArray[np.int32]) -> None:
        """Write which tokens may come next into `mask`, int32 of shape [ceil(vocabulary / 32)]: bit `id % 32` of word
        `id // 32` is set for those that may. A request's stop tokens are among them where the grammar may end."""
        ...

    def accept(self, token_id: int) -> bool:
        """Go on with a sampled token, which is no stop token; False if the grammar forbids it."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the grammar is complete and nothing but a stop token may follow."""
        ...


class ConstraintFactory(Protocol):
    """Compiles grammars for one vocabulary."""

    backends: tuple[Any, ...]
    """That are installed: `EngineInfo.grammar_backend`."""

    def make(self, grammar: Grammar, stop_token_ids: Sequence[int]) -> Constraint:
        """A constraint at the beginning of `grammar`. From any thread; takes milliseconds to seconds, next to
        nothing for a grammar that was compiled lately.

        Raises:
            GrammarError: the grammar is not one, is too large, or `backends` lacks its backend.
            Exception: a library that is installed does not work.
        """
        ...
