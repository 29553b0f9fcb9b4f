"""Compilation of grammars in parallel with the engine's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import msgspec

from openai_bls.core.engine_types import GenerationRequest
from openai_bls.core.keys.turns import FairExecutor
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls.engines.grammars.cache import Owned
from openai_bls.engines.grammars.errors import GivenUpError, GrammarError
from openai_bls.engines.grammars.matcher import Constraint, ConstraintFactory
from openai_bls.engines.grammars.waiters import Waiters
from openai_bls.engines.keyed_futures import KeyedFutures

logger = logging.getLogger(__name__)

# Characters of a grammar. Larger ones may take seconds, which no small one of the same API key waits for.
_SMALL_CHARACTERS = 8 * 1024


class CompiledGrammar(msgspec.Struct, frozen=True):
    """Result of a compilation."""

    key: str
    """Key of the request, which `GrammarCompiler.start` was given."""
    constraint: Constraint | None = None
    """Constraint of the request; None if there is an error."""
    error: str = ""
    """Message to the client."""
    invalid: bool = False
    """The error is the grammar's."""


class GrammarCompiler:
    """Two threads that compile grammars, in turn by API key: one small ones, one large ones."""

    def __init__(self, factory: ConstraintFactory, on_compiled: Callable[[CompiledGrammar], object]) -> None:
        """Start no thread yet.

        Args:
            factory: compiles.
            on_compiled: called once for each start, from a thread of the compiler's; not after `cancel` or `close`. It
                must not call back.
        """
        self._factory = factory
        self._futures = KeyedFutures(on_compiled)
        self._small = FairExecutor(1, "grammars")
        self._large = FairExecutor(1, "large-grammars")
        self._waiters = Waiters()

    def warm_up(self) -> None:
        """Load the library and the vocabulary on a thread of the compiler's."""
        self._small.submit("", self._warm_up)

    def start(self, key: str, request: GenerationRequest) -> None:
        """Compile the grammar of `request`; not after `close`."""
        assert request.grammar is not None
        self._waiters.add(key, Owned(request.owner, request.grammar))
        pool = self._small if len(request.grammar.text) <= _SMALL_CHARACTERS else self._large
        self._futures.start(partial(pool.submit, request.owner), key, partial(self._compile, key, request))

    def cancel(self, key: str) -> None:
        """Forget a request, and end what compiles for it alone. One that is not known is passed over."""
        self._futures.cancel(key)
        owned = self._waiters.remove(key)
        if owned is not None:
            self._factory.give_up(owned.grammar, owned.owner)

    def close(self) -> None:
        """Start no more, and end what runs as far as it can be ended."""
        self._futures.close()
        self._small.close()
        self._large.close()
        self._factory.close()

    def _warm_up(self) -> None:
        try:
            self._factory.warm_up()
        except Exception:  # the first grammar fails by the same error, and its client is told
            logger.exception("the grammar library does not load")

    def _compile(self, key: str, request: GenerationRequest) -> CompiledGrammar:
        assert request.grammar is not None
        try:
            return CompiledGrammar(key, self._factory.make(request.grammar, request.stop_token_ids, request.owner))
        except GrammarError as error:
            return CompiledGrammar(key, error=str(error), invalid=True)
        except GivenUpError:
            return CompiledGrammar(key, error=ENGINE_FAILED)  # which nobody hears
        except Exception:  # of a grammar library
            logger.exception("the grammar library failed")
            return CompiledGrammar(key, error=ENGINE_FAILED)
        finally:
            self._waiters.remove(key)
