"""Grammars over real vocabularies: stop tokens, special tokens, padding, ends, errors, threads."""

from __future__ import annotations

import importlib.util
import json
import tempfile
import threading
from pathlib import Path
from random import Random

import numpy as np
import pytest

from openai_bls.core.engine_types import Grammar
from openai_bls.engines.embedded import grammar_backend
from openai_bls.engines.embedded.grammar_matcher import GrammarError
from tests.unit import core_support
from tests.unit.output.structured.driving import Vocabulary, accepts, demo, drive, json_schema, made, tiny

AB = [
    Grammar("xgrammar", "regex", "ab?"),
    Grammar("llguidance", "regex", "ab?"),
]
ANY_JSON = [Grammar("xgrammar", "json_schema", "{}"), Grammar("llguidance", "json_schema", "{}")]
ANY_TEXT = [
    Grammar("xgrammar", "structural_tag", '{"type": "structural_tag", "format": {"type": "any_text"}}'),
    Grammar("llguidance", "lark", "start: /(?s:.*)/"),
]
BY_BACKEND = pytest.mark.parametrize("wanted", AB, ids=lambda grammar: grammar.backend)


def spelled(vocabulary: Vocabulary, ids: object) -> set[bytes]:
    return {vocabulary.bytes_of[token_id] for token_id in ids}  # type: ignore[attr-defined]


def test_nothing_to_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert grammar_backend.load(tmp_path / "missing", 100, []) is None
    assert grammar_backend.load(tmp_path, 100, []) is None
    core_support.write_tokenizer(tmp_path)
    found = grammar_backend.load(tmp_path, 100, [])
    assert found is not None
    assert found.backends == ("xgrammar", "llguidance")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert grammar_backend.load(tmp_path, 100, []) is None


def test_one_library_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core_support.write_tokenizer(tmp_path)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "xgrammar" else real(name))
    found = grammar_backend.load(tmp_path, core_support.VOCAB_SIZE, [])
    assert found is not None
    assert found.backends == ("llguidance",)
    with pytest.raises(GrammarError, match="xgrammar need that library"):
        found.make(AB[0], [])
    assert not found.make(AB[1], []).ended


@BY_BACKEND
def test_stop_tokens_only_where_the_grammar_may_end(wanted: Grammar) -> None:
    vocabulary = tiny()
    a, b = (vocabulary.id_of_byte[byte] for byte in b"ab")
    stop = [vocabulary.eos, core_support.EOS - 2]
    constraint = vocabulary.make(wanted, stop)
    assert set(vocabulary.allowed(constraint)) == {a}
    assert not constraint.ended
    assert constraint.accept(a)
    assert set(vocabulary.allowed(constraint)) == {b, *stop}
    assert not constraint.ended
    assert constraint.accept(b)
    assert set(vocabulary.allowed(constraint)) == set(stop)
    assert constraint.ended


@BY_BACKEND
def test_a_stop_token_that_is_text_is_no_text(wanted: Grammar) -> None:
    vocabulary = tiny()
    a, b = (vocabulary.id_of_byte[byte] for byte in b"ab")
    constraint = vocabulary.make(wanted, [b, 10**6, -1])
    assert set(vocabulary.allowed(constraint)) == {a}
    assert constraint.accept(a)
    assert set(vocabulary.allowed(constraint)) == {b}
    assert constraint.ended
    with pytest.raises(GrammarError, match="no token of this model's vocabulary fits"):
        vocabulary.allowed(vocabulary.make(wanted, [a]))


@BY_BACKEND
def test_without_stop_tokens_the_end_is_told(wanted: Grammar) -> None:
    vocabulary = tiny()
    constraint = vocabulary.make(wanted, [])
    for byte in b"ab":
        assert not constraint.ended
        assert vocabulary.id_of_byte[byte] in vocabulary.allowed(constraint)
        assert constraint.accept(vocabulary.id_of_byte[byte])
    assert constraint.ended
    assert vocabulary.allowed(constraint).size == 0


@BY_BACKEND
def test_what_does_not_fit_is_not_accepted(wanted: Grammar) -> None:
    vocabulary = tiny()
    for wrong in (vocabulary.id_of_byte[ord("x")], vocabulary.eos, vocabulary.size - 1):
        assert not vocabulary.make(wanted).accept(wrong)


@pytest.mark.parametrize("vocabulary", [tiny, demo])
@pytest.mark.parametrize("wanted", [*ANY_TEXT, *ANY_JSON], ids=lambda grammar: f"{grammar.backend}-{grammar.kind}")
def test_special_and_padded_ids_are_never_text(vocabulary: object, wanted: Grammar) -> None:
    chosen: Vocabulary = vocabulary()  # type: ignore[operator]
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


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_a_special_token_is_text_where_a_tag_spells_it(backend: str) -> None:
    vocabulary = tiny()
    marker = vocabulary.bytes_of.index(b"<|im_start|>")
    number = json_schema({"type": "integer"} if backend == "xgrammar" else {"type": "string", "maxLength": 9})
    wanted = made({"type": "tag", "begin": "<|im_start|>call ", "content": number, "end": "<|im_end|>"})
    assert wanted.backend == backend
    constraint = vocabulary.make(wanted)
    assert set(vocabulary.allowed(constraint)) == {marker, vocabulary.id_of_byte[ord("<")]}
    assert constraint.accept(marker)
    assert spelled(vocabulary, vocabulary.allowed(constraint)) == {b"c"}
    # What ends the text is no part of it, and what is only in a schema, a regular expression or free text no marker.
    assert not accepts_token(Grammar("xgrammar", "ebnf", 'root ::= "<|im_end|>"'), core_support.EOS)
    for other in (json_schema({"enum": ["<|im_start|>"]}), {"type": "regex", "pattern": "<.*"}, {"type": "any_text"}):
        assert not accepts_token(made({"type": "sequence", "elements": [other]}), marker)


def accepts_token(wanted: Grammar, token_id: int) -> bool:
    constraint = tiny().make(wanted, [])
    assert (token_id in tiny().allowed(constraint)) is False
    return constraint.accept(token_id)


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_a_special_marker_is_spelled_out(backend: str) -> None:
    texts = {
        "xgrammar": Grammar("xgrammar", "ebnf", 'root ::= "<|im_start|>"'),
        "llguidance": Grammar("llguidance", "lark", 'start: "<|im_start|>"'),
    }
    assert accepts(texts[backend], "<|im_start|>")


@pytest.mark.parametrize(
    "wanted",
    [
        Grammar("xgrammar", "json_schema", '{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}'),
        Grammar("xgrammar", "ebnf", 'root ::= "{\\"a\\": " [0-9] "}"'),
        Grammar("xgrammar", "regex", r'\{"a": \d\}'),
        Grammar("llguidance", "regex", r'\{"a": \d\}'),
        Grammar("llguidance", "lark", 'start: "{" "\\"a\\": " /[0-9]/ "}"'),
        Grammar(
            "llguidance",
            "json_schema",
            '{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": false,'
            ' "x-guidance": {"whitespace_flexible": false, "key_separator": ": "}}',
        ),
        Grammar(
            "xgrammar",
            "structural_tag",
            '{"type": "structural_tag", "format": {"type": "tag", "begin": "{", "end": "}", "content":'
            ' {"type": "grammar", "grammar": "root ::= \\"\\\\\\"a\\\\\\": \\" [0-9]"}}}',
        ),
    ],
    ids=lambda grammar: f"{grammar.backend}-{grammar.kind}",
)
def test_every_kind(wanted: Grammar) -> None:
    assert accepts(wanted, '{"a": 1}')
    assert not accepts(wanted, '{"a":1}')
    assert not accepts(wanted, '{"b": 1}')


@pytest.mark.parametrize(
    "wanted",
    [
        Grammar("xgrammar", "json_schema", '{"type": "string'),
        Grammar("xgrammar", "json_schema", '{"type": "nothing"}'),
        Grammar("xgrammar", "ebnf", "root ::= other"),
        Grammar("xgrammar", "regex", "("),
        Grammar("xgrammar", "structural_tag", '{"type": "structural_tag", "format": {"type": "x"}}'),
        Grammar("xgrammar", "structural_tag", "{"),
        Grammar("xgrammar", "lark", "start: /a/"),
        Grammar("llguidance", "json_schema", '{"not": {}}'),
        Grammar("llguidance", "json_schema", "{"),
        Grammar("llguidance", "lark", "start: other"),
        Grammar("llguidance", "lark", "start: <|im_end|>"),
        Grammar("llguidance", "regex", "("),
        Grammar("llguidance", "ebnf", 'root ::= "a"'),
    ],
    ids=lambda grammar: f"{grammar.backend}-{grammar.kind}",
)
def test_what_cannot_be_compiled(wanted: Grammar) -> None:
    for _ in range(2):  # the second time from the cache
        with pytest.raises(GrammarError) as caught:
            tiny().make(wanted)
        message = str(caught.value)
        assert message
        assert len(message) <= 300
        assert "\n" not in message
        assert ".cc:" not in message
        assert "/" not in message.split(" ", maxsplit=1)[0]


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_where_one_text_fits_any_of_its_tokens_do(backend: str) -> None:
    vocabulary = demo()
    constraint = vocabulary.make(Grammar(backend, "json_schema", '{"enum": ["the weather"]}'))  # type: ignore[arg-type]
    assert constraint.accept(vocabulary.id_of_byte[ord('"')])
    allowed = spelled(vocabulary, vocabulary.allowed(constraint))
    assert {b"t", b"the"} <= allowed
    assert all(b"the weather".startswith(raw) for raw in allowed)


def test_a_token_of_many_bytes_goes_on_from_within_a_string() -> None:
    for wanted in ANY_JSON:
        constraint = demo().make(wanted)
        assert constraint.accept(demo().id_of_byte[ord('"')])
        long = [token_id for token_id in demo().allowed(constraint) if len(demo().bytes_of[token_id]) > 4]
        assert len(long) > 100
        assert all(raw.count(b'"') <= 1 and b"\n" not in raw for raw in spelled(demo(), demo().allowed(constraint)))


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_constraints_are_independent_and_from_any_thread(backend: str) -> None:
    wanted = [
        Grammar(backend, "json_schema", json.dumps({"enum": [f"{at}{'x' * at}"]}))  # type: ignore[arg-type]
        for at in range(12)
    ]
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


def test_a_grammar_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    folder_factory = Vocabulary(_folder(), core_support.VOCAB_SIZE, core_support.EOS).factory
    compiled: list[str] = []
    for name, kind in list(grammar_backend._BACKENDS.items()):

        class Counting(kind):  # type: ignore[misc,valid-type]
            def compile(self, grammar: Grammar) -> object:
                compiled.append(grammar.text)
                return super().compile(grammar)

        monkeypatch.setitem(grammar_backend._BACKENDS, name, Counting)
    for wanted in AB * 3:
        folder_factory.make(wanted, [])
    assert compiled == ["ab?", "ab?"]
    for at in range(grammar_backend._KEPT):
        folder_factory.make(Grammar("llguidance", "regex", f"a{at}"), [])
    folder_factory.make(AB[0], [])
    assert len(compiled) == 2 + grammar_backend._KEPT + 1  # it had been given up meanwhile


def test_a_library_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the grammar's fault."""

    def broken(tokens: object) -> None:
        raise ImportError("libxgrammar.so: cannot open shared object file")

    monkeypatch.setitem(grammar_backend._BACKENDS, "xgrammar", broken)
    factory = Vocabulary(_folder(), core_support.VOCAB_SIZE, core_support.EOS).factory
    with pytest.raises(ImportError):
        factory.make(AB[0], [])
    assert not factory.make(AB[1], []).ended


@pytest.mark.parametrize(
    "wanted",
    [
        Grammar("xgrammar", "regex", "a" * 300_000),
        Grammar("xgrammar", "ebnf", f'root ::= "{"a" * 300_000}"'),
        Grammar("llguidance", "regex", "a" * 300_000),
        Grammar("llguidance", "lark", f"start: /{'a' * 300_000}/"),
    ],
    ids=lambda grammar: f"{grammar.backend}-{grammar.kind}",
)
def test_what_is_too_large(wanted: Grammar) -> None:
    with pytest.raises(GrammarError, match=r"the grammar is too large: its rules take \d+ characters, 262144 at most"):
        tiny().make(wanted)


def test_beyond_the_limits_of_llguidance() -> None:
    limits = "^the grammar is beyond llguidance's limits: [^<\n]+$"
    at_once = "start: X\nX: /(?s:.*)(a|b)(?s:.{500})c/ & /(?s:.*)(a|d)(?s:.{499})c/"
    constraint = tiny().make(Grammar("llguidance", "lark", at_once))
    for _ in range(2):  # it stays so
        with pytest.raises(GrammarError, match=limits):
            assert constraint.ended
        with pytest.raises(GrammarError, match=limits):
            tiny().allowed(constraint)


def _folder() -> Path:
    return core_support.write_tokenizer(Path(tempfile.mkdtemp()))


def test_the_mask_is_the_models_width() -> None:
    for size in (core_support.VOCAB_SIZE, 288, 289, 320):
        vocabulary = Vocabulary(_folder(), size, core_support.EOS)
        for wanted in ANY_TEXT:
            mask = np.full(-(-size // 32), -1, dtype=np.int32)
            vocabulary.make(wanted).fill(mask)
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
            assert bits[core_support.EOS]
            assert not bits[core_support.VOCAB_SIZE :].any()
            assert bits[vocabulary.id_of_byte[ord("a")]]


def test_a_smaller_model_than_its_tokenizer() -> None:
    size = 100
    vocabulary = Vocabulary(_folder(), size, 3)
    for wanted in ANY_TEXT:
        assert max(vocabulary.allowed(vocabulary.make(wanted))) < size


def test_random_outputs_end() -> None:
    for wanted in ANY_JSON:
        texts = [drive(demo(), wanted, Random(seed)) for seed in range(20)]
        assert sum(text is not None for text in texts) > 10
