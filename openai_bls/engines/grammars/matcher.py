"""Interfaces between the embedded engine and its grammar library (`llguidance_backend` implements them)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from openai_bls.core.engine_types import Grammar

Bitmask = npt.NDArray[np.int32]
"""Allowed tokens, int32 of shape [ceil(vocabulary / 32)]: bit `id % 32` of word `id // 32` is set for those."""


class Constraint(Protocol):
    """Position of one sequence in its grammar. Used by one thread at a time.

    Every method may raise `GrammarError` where the grammar is to blame, say because it exceeds the library's limits,
    and any other exception where the library fails.
    """

    def fill(self, mask: Bitmask) -> None:
        """Write the tokens that may come next, the request's stop tokens among them where the grammar may end."""

    def accept(self, token_id: int) -> bool:
        """Advance by a sampled token, which is no stop token; False if the grammar forbids it."""

    def look_ahead(self, token_ids: Sequence[int]) -> list[Bitmask]:
        """What `fill` would write after each of `token_ids`, none of them a stop token, without advancing: up to the
        first that is forbidden, or with which the grammar is complete or fails. Raises nothing."""

    def forced(self) -> list[int]:
        """Tokens that spell the only text that may follow; empty where several may. Others may spell the same. Raises
        nothing."""

    @property
    def ended(self) -> bool:
        """True once the grammar is complete and nothing but a stop token may follow."""


class ConstraintFactory(Protocol):
    """Compiler of grammars for one vocabulary."""

    backend: Any
    """`EngineInfo.grammar_backend`."""

    def warm_up(self) -> None:
        """Load the library and the vocabulary, which the first grammar would wait for otherwise. From any thread."""

    def make(self, grammar: Grammar, stop_token_ids: Sequence[int], owner: str = "") -> Constraint:
        """A constraint at the beginning of `grammar`. From any thread; takes milliseconds to seconds, and microseconds
        for a grammar that was compiled for the same owner lately.

        Args:
            grammar: the grammar.
            stop_token_ids: stop tokens of the request.
            owner: name of the API key that it is for.

        Raises:
            GrammarError: the grammar is malformed, costs too much, or is of a kind that the library does not read.
            GivenUpError: so it was, by `give_up`.
            Exception: the library is installed and does not work.
        """

    def give_up(self, grammar: Grammar, owner: str = "") -> None:
        """Compile a grammar no further, as far as it can be ended; passed over if it is not being compiled."""

    def close(self) -> None:
        """End what compiles; nothing is made any more."""

    def fill_bitmasks(self, constraints: Sequence[Constraint]) -> None:
        """Compute the next bitmasks of `constraints`, of this factory, in parallel, without the GIL.

        Raises nothing: what fails is raised by the constraint that it concerns.
        """
