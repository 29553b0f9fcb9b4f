"""Grammars compiled on other threads: what is told of, and what no longer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from openai_bls.core.engine_types import Grammar
from openai_bls.engines.grammars.compiler import CompiledGrammar, GrammarCompiler
from openai_bls.engines.grammars.errors import GrammarError
from tests.unit.engines.engine_support import PATIENCE_S, request

SMALL_GATE = "gate"
LARGE_GATE = "gate" + " " * 10_000


class Factory:
    """Compiles what is not told to wait."""

    backend = "llguidance"

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.at_gate = threading.Semaphore(0)
        self.gate = threading.Event()
        self.passed = threading.Semaphore(0)

    def warm_up(self) -> None:
        self.begun.append("warm-up")
        raise ImportError("libguidance.so: cannot open shared object file")

    def fill_bitmasks(self, constraints: Sequence[Any]) -> None: ...

    def make(self, grammar: Grammar, stop_token_ids: Sequence[int]) -> Any:
        self.begun.append(grammar.text)
        if grammar.text.startswith("gate"):
            self.at_gate.release()
            assert self.gate.wait(PATIENCE_S)
            self.passed.release()
        if grammar.text == "bad":
            raise GrammarError("the schema has no type")
        if grammar.text == "broken":
            raise ImportError("libguidance.so: cannot open shared object file")
        return grammar.text


class Setup:
    def __init__(self) -> None:
        self.factory = Factory()
        self.results: queue.Queue[CompiledGrammar] = queue.Queue()
        self.compiler = GrammarCompiler(self.factory, self.results.put)

    def start(self, *texts: str) -> None:
        for text in texts:
            self.compiler.start(text, request(1, grammar=Grammar("regex", text)))

    def result(self) -> CompiledGrammar:
        return self.results.get(timeout=PATIENCE_S)

    def fill_threads(self) -> None:
        """Nothing else begins until the gate opens."""
        self.start(SMALL_GATE, LARGE_GATE)
        for _ in range(2):
            assert self.factory.at_gate.acquire(timeout=PATIENCE_S)

    def open(self) -> None:
        self.factory.gate.set()
        for _ in range(2):
            assert self.factory.passed.acquire(timeout=PATIENCE_S)


@pytest.fixture
def setup() -> Iterator[Setup]:
    made = Setup()
    yield made
    made.factory.gate.set()
    made.compiler.close()


def test_a_warm_up_that_fails_ends_nothing(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    setup.compiler.warm_up()
    setup.start("good")
    assert setup.result().error == ""
    assert setup.factory.begun == ["warm-up", "good"]
    assert "the grammar library does not load" in caplog.text


def test_what_is_cancelled_before_it_begins_never_does(setup: Setup) -> None:
    setup.fill_threads()
    setup.start("third", "fourth")
    setup.compiler.cancel("third")
    setup.compiler.cancel("third")
    setup.compiler.cancel("unknown")
    setup.open()
    assert {setup.result().key for _ in range(3)} == {SMALL_GATE, LARGE_GATE, "fourth"}
    assert "third" not in setup.factory.begun
    assert setup.results.empty()


def test_large_grammars_hold_up_no_small_one(setup: Setup) -> None:
    setup.start(LARGE_GATE)
    assert setup.factory.at_gate.acquire(timeout=PATIENCE_S)
    setup.start("small", LARGE_GATE + "2")
    assert setup.result().key == "small"
    setup.factory.gate.set()
    assert {setup.result().key for _ in range(2)} == {LARGE_GATE, LARGE_GATE + "2"}
