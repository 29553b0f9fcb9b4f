"""Grammars over real vocabularies: stop tokens, special tokens, padding, ends, errors, threads."""

from __future__ import annotations

import importlib.util
import json
import re
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openai_bls.core.engine_types import Grammar
from openai_bls.engines.grammars import cache, llguidance_backend, trial_worker
from openai_bls.engines.grammars.errors import GivenUpError, GrammarError
from openai_bls.engines.grammars.matcher import Constraint
from tests.unit import core_support
from tests.unit.output.structured.driving import Vocabulary, accepts, demo, tiny

AB = Grammar("regex", "ab?")
ANY_JSON = Grammar("json_schema", "{}")
ANY_TEXT = Grammar("lark", "start: /(?s:.*)/")
LIMITS = "llguidance's limits: [^<\n]+$"
# Beyond llguidance's limits from the first token.
TOO_COMPLEX = "start: X\nX: /(?s:.*)(a|b)(?s:.{500})c/ & /(?s:.*)(a|d)(?s:.{499})c/"


def enum(text: str) -> Grammar:
    return Grammar("json_schema", json.dumps({"enum": [text]}))


def spelled(vocabulary: Vocabulary, ids: Any) -> set[bytes]:
    return {vocabulary.bytes_of[token_id] for token_id in ids}


@pytest.fixture
def folder() -> Path:
    return core_support.write_tokenizer(Path(tempfile.mkdtemp()))


def test_nothing_to_load(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert llguidance_backend.load(tmp_path / "missing", 100, []) is None
    assert llguidance_backend.load(tmp_path, 100, []) is None
    found = llguidance_backend.load(folder, 100, [])
    assert found is not None
    assert found.backend == "llguidance"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert llguidance_backend.load(folder, 100, []) is None


def test_stop_tokens_only_where_the_grammar_may_end() -> None:
    vocabulary = tiny()
    a, b = (vocabulary.id_of_byte[byte] for byte in b"ab")
    stop = [vocabulary.eos, core_support.EOS - 2]
    constraint = vocabulary.make(AB, stop)
    for token_id, allowed in ((a, {a}), (b, {b, *stop})):
        assert set(vocabulary.allowed(constraint)) == allowed
        assert not constraint.ended
        assert constraint.accept(token_id)
    assert set(vocabulary.allowed(constraint)) == set(stop)
    assert constraint.ended


def test_a_stop_token_that_is_text_is_no_text() -> None:
    vocabulary = tiny()
    a, b = (vocabulary.id_of_byte[byte] for byte in b"ab")
    constraint = vocabulary.make(AB, [b, 10**6, -1])
    assert set(vocabulary.allowed(constraint)) == {a}
    assert constraint.accept(a)
    assert set(vocabulary.allowed(constraint)) == {b}
    assert constraint.ended
    with pytest.raises(GrammarError, match="no token"):
        vocabulary.allowed(vocabulary.make(AB, [a]))


def test_without_stop_tokens_the_end_is_told() -> None:
    vocabulary = tiny()
    constraint = vocabulary.make(AB, [])
    for byte in b"ab":
        assert not constraint.ended
        assert constraint.accept(vocabulary.id_of_byte[byte])
    assert constraint.ended
    assert vocabulary.allowed(constraint).size == 0


def test_what_does_not_fit_is_not_accepted() -> None:
    vocabulary = tiny()
    for wrong in (vocabulary.id_of_byte[ord("x")], vocabulary.eos, vocabulary.size - 1):
        assert not vocabulary.make(AB).accept(wrong)


@pytest.mark.parametrize("vocabulary", [tiny, demo])
@pytest.mark.parametrize("wanted", [ANY_TEXT, ANY_JSON], ids=lambda grammar: grammar.kind)
def test_special_and_padded_ids_are_never_text(vocabulary: Callable[[], Vocabulary], wanted: Grammar) -> None:
    chosen = vocabulary()
    constraint = chosen.make(wanted, [])
    if wanted.kind == "json_schema":
        assert constraint.accept(chosen.id_of_byte[ord('"')])
    allowed = set(chosen.allowed(constraint))
    special = {at for at, raw in enumerate(chosen.bytes_of) if raw.startswith(b"<|") and raw.endswith(b"|>")}
    padded = {at for at, raw in enumerate(chosen.bytes_of) if not raw}
    assert len(special) == 3
    assert chosen is demo() or len(padded) == 7
    assert not allowed & (special | padded)
    assert chosen.id_of_byte[ord("<")] in allowed
    assert chosen.bytes_of.index(b"<tool_call>") in allowed  # this one is ordinary text to the tokenizer


def test_a_special_token_is_text_where_a_lark_grammar_spells_it() -> None:
    vocabulary = tiny()
    marker = vocabulary.bytes_of.index(b"<|im_start|>")
    wanted = Grammar("lark", 'start: "<|im_start|>call " /[a-z]{1,9}/')
    constraint = vocabulary.make(wanted)
    assert set(vocabulary.allowed(constraint)) == {marker, vocabulary.id_of_byte[ord("<")]}
    assert constraint.accept(marker)
    assert spelled(vocabulary, vocabulary.allowed(constraint)) == {b"c"}
    assert accepts(wanted, "<|im_start|>call now")
    # A token that ends the text is no part of it; in a schema, a regular expression or free text there is no marker.
    for other, token_id in (
        (Grammar("lark", 'start: "<|im_end|>"'), core_support.EOS),
        (enum("<|im_start|>"), marker),
        (Grammar("lark", 'start: %json {"enum": ["<|im_start|>"]}'), marker),
        (Grammar("regex", "<.*"), marker),
        (ANY_TEXT, marker),
    ):
        assert token_id not in vocabulary.allowed(vocabulary.make(other, []))
        assert not vocabulary.make(other, []).accept(token_id)


@pytest.mark.parametrize(
    "wanted",
    [
        Grammar("json_schema", '{"not": {}}'),
        Grammar("json_schema", "{"),
        Grammar("lark", "start: other"),
        Grammar("lark", "start: <|im_end|>"),
        Grammar("regex", "("),
        Grammar("ebnf", 'root ::= "a"'),
        Grammar("structural_tag", "{}"),
    ],
    ids=lambda grammar: grammar.kind,
)
def test_what_cannot_be_compiled(wanted: Grammar) -> None:
    for _ in range(2):  # the second time from the cache
        with pytest.raises(GrammarError) as caught:
            tiny().make(wanted)
        message = str(caught.value)
        assert message
        assert len(message) <= 300
        assert "\n" not in message
        assert "/" not in message.split(" ", maxsplit=1)[0]


def test_where_one_text_fits_any_of_its_tokens_do() -> None:
    vocabulary = demo()
    constraint = vocabulary.make(enum("the weather"))
    assert constraint.accept(vocabulary.id_of_byte[ord('"')])
    allowed = spelled(vocabulary, vocabulary.allowed(constraint))
    assert {b"t", b"the"} <= allowed
    assert all(b"the weather".startswith(raw) for raw in allowed)


def test_a_token_of_many_bytes_goes_on_from_within_a_string() -> None:
    constraint = demo().make(ANY_JSON)
    assert constraint.accept(demo().id_of_byte[ord('"')])
    allowed = spelled(demo(), demo().allowed(constraint))
    assert sum(len(raw) > 4 for raw in allowed) > 100
    assert all(raw.count(b'"') <= 1 and b"\n" not in raw for raw in allowed)


def test_constraints_are_independent_and_from_any_thread() -> None:
    wanted = [enum(f"{at}{'x' * at}") for at in range(12)]
    found: dict[int, list[str]] = {}

    def work(thread: int) -> None:
        found[thread] = []
        for one in wanted:
            constraint = tiny().make(one)
            text = b""
            while not constraint.ended:
                (token_id,) = tiny().allowed(constraint)
                assert constraint.accept(int(token_id))
                text += tiny().bytes_of[token_id]
            found[thread].append(text.decode())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    expected = [json.dumps(f"{at}{'x' * at}") for at in range(12)]
    assert [found[number] for number in range(6)] == [expected] * 6


def test_bitmasks_computed_in_parallel_are_those_computed_alone() -> None:
    vocabulary = demo()
    grammars = [ANY_JSON, enum("the weather"), AB, ANY_TEXT, Grammar("lark", TOO_COMPLEX), Grammar("regex", "a")]
    together, alone = ([vocabulary.make(wanted) for wanted in grammars] for _ in range(2))
    quote, a = (vocabulary.id_of_byte[ord(letter)] for letter in '"a')
    for token_ids in ((), (quote, quote, a, a, a, a)):
        for one, other, token_id in zip(together, alone, token_ids, strict=False):
            if one is not together[4]:
                assert one.accept(token_id)
                assert other.accept(token_id)
        vocabulary.factory.fill_bitmasks(together)
        vocabulary.factory.fill_bitmasks(together)  # nothing is left to compute
        for one, other, wanted in zip(together, alone, grammars, strict=True):
            if wanted.text == TOO_COMPLEX:
                for constraint in (one, other):
                    with pytest.raises(GrammarError, match=LIMITS):
                        vocabulary.allowed(constraint)
                    with pytest.raises(GrammarError, match=LIMITS):  # it stays so
                        assert constraint.ended
                continue
            assert vocabulary.allowed(one).tolist() == vocabulary.allowed(other).tolist()
            assert one.ended == other.ended == (bool(token_ids) and wanted.text == "a")


def test_what_fails_in_parallel_is_computed_alone(caplog: pytest.LogCaptureFixture) -> None:
    factory: Any = tiny().factory
    constraints = [tiny().make(AB, []) for _ in range(2)]
    executor, factory._executor = factory._executor, None
    factory.fill_bitmasks(constraints)
    factory._executor = executor
    assert "in parallel" in caplog.text
    assert [tiny().allowed(one).tolist() for one in constraints] == [[tiny().id_of_byte[ord("a")]]] * 2


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grammars that the engine's process compiles, as they come."""
    texts: list[str] = []
    original = trial_worker.compiled

    def counting(llguidance: Any, vocabulary: Any, lark: str) -> Any:
        texts.append(lark)
        return original(llguidance, vocabulary, lark)

    monkeypatch.setattr(trial_worker, "compiled", counting)
    return texts


def test_a_grammar_is_compiled_once_for_each_key(folder: Path, compiled: list[str]) -> None:
    factory = llguidance_backend.LlguidanceFactory(folder, core_support.VOCAB_SIZE, (core_support.EOS,), trials=False)
    for _ in range(3):
        factory.make(AB, [])
    assert len(compiled) == 1
    for _ in range(3):
        factory.make(AB, [], "alice")
    assert len(compiled) == 2
    for at in range(cache.MAX_GRAMMARS):
        factory.make(Grammar("regex", f"a{at}"), [], "alice")
    factory.make(AB, [])
    assert len(compiled) == 2 + cache.MAX_GRAMMARS
    factory.make(AB, [], "alice")  # which has been dropped meanwhile
    assert len(compiled) == 3 + cache.MAX_GRAMMARS


def test_a_grammar_whose_lexer_has_met_its_limits_is_compiled_anew(
    folder: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = Vocabulary(folder, core_support.VOCAB_SIZE, core_support.EOS)
    monkeypatch.setattr(trial_worker, "MAX_LEXER_STATES", 500)
    # Each token adds a state.
    wanted = Grammar("regex", "(?s:.*)a(?s:.{600})b(?s:.*)")
    token_id = vocabulary.id_of_byte[ord("a")]

    def meet_the_limits(constraint: Constraint) -> int:
        """How many tokens come before."""
        for count in range(10_000):
            try:
                vocabulary.allowed(constraint)
                assert constraint.accept(token_id)
            except GrammarError as error:
                return count if re.search(LIMITS, str(error)) else -1
        return -1

    first, second, others = (vocabulary.factory.make(wanted, [], owner) for owner in ("alice", "alice", "bob"))
    before = len(compiled)
    count = meet_the_limits(first)
    assert count > 1
    assert 0 <= meet_the_limits(second) <= 1  # it shares the lexer
    assert meet_the_limits(vocabulary.factory.make(wanted, [], "alice")) == count
    assert len(compiled) == before + 1
    assert meet_the_limits(others) == count  # as it was
    assert len(compiled) == before + 1


def test_what_is_beyond_the_budget_is_not_compiled_here(folder: Path, compiled: list[str]) -> None:
    factory = llguidance_backend.load(folder, core_support.VOCAB_SIZE, [core_support.EOS])
    assert factory is not None
    try:
        for wanted in (Grammar("json_schema", '{"type": "integer", "multipleOf": 999983}'), Grammar("regex", "(")):
            for _ in range(2):  # the second time from the cache
                with pytest.raises(GrammarError):
                    factory.make(wanted, [])
        assert compiled == []
        assert not factory.make(AB, []).ended
        assert len(compiled) == 1
    finally:
        factory.close()
    with pytest.raises(GivenUpError):
        factory.make(Grammar("regex", "abc"), [])


def test_a_library_that_does_not_load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the grammar's fault."""
    factory = Vocabulary(folder, core_support.VOCAB_SIZE, core_support.EOS).factory
    with monkeypatch.context() as patch:
        patch.setattr("llguidance.LLTokenizer", None)
        for load in (factory.warm_up, lambda: factory.make(AB, [])):
            with pytest.raises(TypeError):
                load()
    factory.warm_up()
    assert not factory.make(AB, []).ended


@pytest.mark.parametrize("wanted", [Grammar("regex", "a" * 300_000), Grammar("lark", f"start: /{'a' * 300_000}/")])
def test_what_is_too_large(wanted: Grammar) -> None:
    with pytest.raises(GrammarError, match=r" \d+ characters, 262144 "):
        tiny().make(wanted)


@pytest.mark.parametrize("size", [core_support.VOCAB_SIZE, 288, 289, 320])
def test_the_mask_is_the_models_width(folder: Path, size: int) -> None:
    vocabulary = Vocabulary(folder, size, core_support.EOS)
    mask = np.full(-(-size // 32), -1, dtype=np.int32)
    vocabulary.make(ANY_TEXT).fill(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert bits[core_support.EOS]
    assert not bits[core_support.VOCAB_SIZE :].any()
    assert bits[vocabulary.id_of_byte[ord("a")]]


def test_a_smaller_model_than_its_tokenizer(folder: Path) -> None:
    vocabulary = Vocabulary(folder, 100, 3)
    assert max(vocabulary.allowed(vocabulary.make(ANY_TEXT))) < 100
