"""Grammars compiled on other threads: what is told of, and what no longer."""

from __future__ import annotations

import json
import queue
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.engine_types import Grammar
from openai_bls.engines.grammars import llguidance_backend
from openai_bls.engines.grammars.compiler import CompiledGrammar, GrammarCompiler
from openai_bls.engines.grammars.errors import GrammarError
from tests.engine_contract.support import PATIENCE_S, request
from tests.unit import core_support

SMALL_GATE = "gate"
LARGE_GATE = "gate" + " " * 10_000
PRIMES = (999983, 999979, 999961, 999959, 999953, 999931, 999917, 999907)


def alternatives(*counts: int) -> dict[str, Any]:
    """So many alternatives within one another, all of which begin alike; the last count tells schemas apart."""
    count, *deeper = counts
    if not deeper:
        return {"const": count}
    parts = [{"type": "object", "properties": {"p": alternatives(*deeper), f"q{at}": {}}} for at in range(count)]
    return {"anyOf": parts}


@pytest.fixture
def folder() -> Path:
    return core_support.write_tokenizer(Path(tempfile.mkdtemp()))


class Factory:
    """Compiles what is not told to wait."""

    backend = "llguidance"

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.at_gate = threading.Semaphore(0)
        self.gate = threading.Event()
        self.passed = threading.Semaphore(0)
        self.given_up: list[tuple[str, str]] = []
        self.closed = False

    def warm_up(self) -> None:
        self.begun.append("warm-up")
        raise ImportError("libguidance.so: cannot open shared object file")

    def fill_bitmasks(self, constraints: Sequence[Any]) -> None: ...

    def give_up(self, grammar: Grammar, owner: str = "") -> None:
        self.given_up.append((grammar.text, owner))

    def close(self) -> None:
        self.closed = True

    def make(self, grammar: Grammar, stop_token_ids: Sequence[int], owner: str = "") -> Any:
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

    def start_of(self, owner: str, key: str, text: str) -> None:
        self.compiler.start(key, request(1, grammar=Grammar("regex", text), owner=owner))

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
    assert made.factory.closed


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


def test_a_second_key_waits_for_one_unit_of_work(setup: Setup) -> None:
    for at in range(10):
        setup.start_of("alice", f"alice {at}", f"gate {at}")
    assert setup.factory.at_gate.acquire(timeout=PATIENCE_S)
    setup.start_of("bob", "bob", "new")
    setup.factory.gate.set()
    assert [setup.result().key for _ in range(3)] == ["alice 0", "bob", "alice 1"]


def test_what_compiles_is_given_up_when_nobody_waits_for_it(setup: Setup) -> None:
    setup.start_of("alice", "first", SMALL_GATE)
    assert setup.factory.at_gate.acquire(timeout=PATIENCE_S)
    setup.start_of("alice", "second", SMALL_GATE)
    setup.start_of("bob", "bob", SMALL_GATE)
    setup.compiler.cancel("first")
    setup.compiler.cancel("bob")
    assert setup.factory.given_up == [(SMALL_GATE, "bob")]  # alice's second request still waits
    setup.compiler.cancel("second")
    setup.compiler.cancel("second")
    assert setup.factory.given_up == [(SMALL_GATE, "bob"), (SMALL_GATE, "alice")]


def test_what_is_compiled_is_not_given_up(setup: Setup) -> None:
    setup.start("good")
    assert setup.result().error == ""
    setup.compiler.cancel("good")
    setup.compiler.cancel("good")
    assert setup.factory.given_up == []


@pytest.mark.parametrize(
    "hostile",
    [
        [Grammar("json_schema", json.dumps({"type": "integer", "multipleOf": prime})) for prime in PRIMES],
        [Grammar("json_schema", json.dumps(alternatives(12, 12, 12, at))) for at in range(3)],
        [Grammar("regex", f"(?s:.*)(a|b)(?s:.{{500}})c{at}|(a?){{30}}a{{30}}|(.*x){{20}}") for at in range(4)],
        [
            Grammar("lark", f"start: X\nX: /(?s:.*)(a|b)(?s:.{{{at}}})c/ & /(?s:.*)(a|d)(?s:.{{499}})c/")
            for at in (500, 501)
        ],
    ],
    ids=["multipleOf", "anyOf", "regex", "lark"],
)
def test_hostile_grammars_of_one_key_hold_another_up_for_one_unit(folder: Path, hostile: list[Grammar]) -> None:
    """With the library: the second key's is the first or second to be done, and compiles."""
    factory = llguidance_backend.load(folder, core_support.VOCAB_SIZE, [core_support.EOS])
    assert factory is not None
    factory.warm_up()
    results: queue.Queue[CompiledGrammar] = queue.Queue()
    compiler = GrammarCompiler(factory, results.put)
    try:
        for at, grammar in enumerate(hostile):
            compiler.start(f"alice {at}", request(1, grammar=grammar, owner="alice"))
        schema = Grammar("json_schema", '{"type": "object", "properties": {"a": {"type": "string"}}}')
        compiler.start("bob", request(1, grammar=schema, owner="bob"))
        ends = [results.get(timeout=PATIENCE_S) for _ in range(2)]
        assert "bob" in [end.key for end in ends]
        assert next(end.constraint for end in ends if end.key == "bob") is not None
        for at in range(len(hostile)):
            compiler.cancel(f"alice {at}")
    finally:
        compiler.close()


def test_a_client_that_leaves_ends_what_compiles_for_it(folder: Path) -> None:
    factory = llguidance_backend.load(folder, core_support.VOCAB_SIZE, [core_support.EOS])
    assert factory is not None
    results: queue.Queue[CompiledGrammar] = queue.Queue()
    compiler = GrammarCompiler(factory, results.put)
    try:
        slow = Grammar("json_schema", '{"type": "integer", "multipleOf": 999983}')
        compiler.start("alice", request(1, grammar=slow, owner="alice"))
        compiler.cancel("alice")
        compiler.start("again", request(1, grammar=slow, owner="alice"))
        end = results.get(timeout=PATIENCE_S)
        assert (end.key, end.invalid, "to compile" in end.error) == ("again", True, True)
    finally:
        compiler.close()
