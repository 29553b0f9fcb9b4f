"""Compilations of grammars: each once, within its budget, and kept for the API key that it was for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from openai_bls.engines.grammars.cache import GrammarCache, Owned
from openai_bls.engines.grammars.errors import GivenUpError, GrammarError, message
from openai_bls.engines.grammars.trials import Trials

logger = logging.getLogger(__name__)


class Compilations:
    """Compiled grammars of one vocabulary. Thread-safe.

    Args:
        compiled: compiles a grammar in llguidance's Lark; its `LLMatcher`, at the beginning or in its state of error.
        trials: tries each grammar before; None does not.
    """

    def __init__(self, compiled: Callable[[str], Any], trials: Trials | None) -> None:
        self._compiled = compiled
        self._trials = trials
        self._lock = threading.Lock()
        self._kept = GrammarCache()
        self._running: dict[Owned, Future[Any]] = {}

    def matcher(self, owned: Owned, lark: str) -> Any:
        """The `LLMatcher` of a grammar, to be copied; compiled once, also if several threads ask for it at a time.

        Args:
            owned: the grammar.
            lark: its text in llguidance's Lark.

        Raises:
            GrammarError: it cannot be compiled within the budget.
            GivenUpError: it was given up.
            RuntimeError: it could not be tried.
        """
        while True:
            with self._lock:
                kept = self._kept.get(owned)
                running = self._running.get(owned)
                if kept is None and running is None:
                    mine = self._running[owned] = Future()
                    break
            if isinstance(kept, str):
                raise GrammarError(kept)
            if kept is not None:
                return kept
            assert running is not None
            try:
                return running.result()
            except GivenUpError:
                logger.debug("a grammar was given up by those who had asked first: it is compiled anew")
        return self._run(owned, lark, mine)

    def forget(self, owned: Owned, matcher: Any) -> None:
        """Compile a grammar anew for the next request: the lexer, which the copies of `matcher` share, has failed."""
        with self._lock:
            if self._kept.get(owned) is matcher:
                self._kept.forget(owned)

    def give_up(self, owned: Owned) -> None:
        """End the trial of a grammar, if it is in one."""
        if self._trials is not None:
            self._trials.give_up(owned)

    def close(self) -> None:
        """End the trial processes; nothing is tried any more."""
        if self._trials is not None:
            self._trials.close()

    def _run(self, owned: Owned, lark: str, future: Future[Any]) -> Any:
        try:
            size = 0 if self._trials is None else self._trials.run(owned, lark)
            matcher = self._compile(lark)
        except BaseException as error:
            self._end(owned, str(error) if isinstance(error, GrammarError) else None, 0)
            future.set_exception(error)
            raise
        self._end(owned, matcher, size)
        future.set_result(matcher)
        return matcher

    def _compile(self, lark: str) -> Any:
        try:
            matcher = self._compiled(lark)
        except BaseException as error:  # a panic of the library's is no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise GrammarError(message(error)) from None
        if matcher.is_error():
            raise GrammarError(message(matcher.get_error()))
        return matcher

    def _end(self, owned: Owned, outcome: Any, size: int) -> None:
        """Keep what has become of a grammar, unless it is None."""
        with self._lock:
            del self._running[owned]
            if outcome is not None:
                self._kept.put(owned, outcome, size)
