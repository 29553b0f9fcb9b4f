"""Compilations of grammars: once for all that ask, anew for those whose grammar was given up under them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Hashable
from typing import Any

import pytest

from openai_bls.core.engine_types import Grammar
from openai_bls.engines.grammars.cache import Owned
from openai_bls.engines.grammars.compilations import Compilations
from openai_bls.engines.grammars.errors import GivenUpError, GrammarError
from tests.engine_contract.support import PATIENCE_S

OWNED = Owned("alice", Grammar("regex", "a"))


class Matcher:
    """Of a grammar that is one."""

    def is_error(self) -> bool:
        return False


class PanicError(BaseException):
    """As the library's."""


class Trials:
    """Trials that wait to be told how they end."""

    def __init__(self) -> None:
        self.begun: queue.Queue[Hashable] = queue.Queue()
        self.ends: queue.Queue[int | BaseException] = queue.Queue()

    def run(self, name: Hashable, lark: str) -> int:
        self.begun.put(name)
        end = self.ends.get(timeout=PATIENCE_S)
        if isinstance(end, BaseException):
            raise end
        return end


class Setup:
    def __init__(self) -> None:
        self.trials = Trials()
        self.compiled: list[str] = []
        trials: Any = self.trials
        self.compilations = Compilations(self._compile, trials)
        self.results: queue.Queue[Any] = queue.Queue()
        self._threads: list[threading.Thread] = []

    def _compile(self, lark: str) -> Any:
        self.compiled.append(lark)
        if lark == "panic":
            raise PanicError("index out of bounds")
        return Matcher()

    def ask(self) -> None:
        thread = threading.Thread(target=self._ask)
        self._threads.append(thread)
        thread.start()

    def _ask(self) -> None:
        try:
            self.results.put(self.compilations.matcher(OWNED, "lark"))
        except Exception as error:
            self.results.put(type(error))

    def join(self) -> list[Any]:
        for thread in self._threads:
            thread.join(PATIENCE_S)
        return [self.results.get_nowait() for _ in self._threads]


@pytest.fixture
def setup() -> Setup:
    return Setup()


def test_it_is_compiled_once_for_all_that_ask(setup: Setup) -> None:
    for _ in range(3):
        setup.ask()
    assert setup.trials.begun.get(timeout=PATIENCE_S) == OWNED
    setup.trials.ends.put(100)
    assert len(set(setup.join())) == 1
    assert setup.compiled == ["lark"]
    assert setup.trials.begun.empty()


def test_who_still_waits_when_it_is_given_up_has_it_compiled(setup: Setup) -> None:
    for _ in range(2):
        setup.ask()
    for end in (GivenUpError(), 100):
        setup.trials.begun.get(timeout=PATIENCE_S)
        setup.trials.ends.put(end)
    assert {one if isinstance(one, type) else type(one) for one in setup.join()} == {GivenUpError, Matcher}
    assert setup.compiled == ["lark"]


def test_a_refusal_is_kept(setup: Setup) -> None:
    setup.trials.ends.put(GrammarError("it takes too much"))
    for _ in range(3):
        with pytest.raises(GrammarError, match="too much"):
            setup.compilations.matcher(OWNED, "lark")
    assert setup.trials.begun.qsize() == 1
    assert setup.compiled == []


def test_a_failure_is_not_kept(setup: Setup) -> None:
    setup.trials.ends.put(RuntimeError())
    setup.trials.ends.put(100)
    with pytest.raises(RuntimeError):
        setup.compilations.matcher(OWNED, "lark")
    assert setup.compilations.matcher(OWNED, "lark")


def test_a_panic_is_the_grammars_fault(setup: Setup) -> None:
    setup.trials.ends.put(100)
    with pytest.raises(GrammarError, match="index out of bounds"):
        setup.compilations.matcher(OWNED, "panic")


def test_only_what_has_failed_is_forgotten(setup: Setup) -> None:
    setup.trials.ends.put(100)
    matcher = setup.compilations.matcher(OWNED, "lark")
    setup.compilations.forget(OWNED, Matcher())
    assert setup.compilations.matcher(OWNED, "lark") is matcher
    setup.compilations.forget(OWNED, matcher)
    setup.trials.ends.put(100)
    assert setup.compilations.matcher(OWNED, "lark") is not matcher
