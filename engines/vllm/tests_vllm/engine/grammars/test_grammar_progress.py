"""Progress in grammars beside vLLM: ends, refusals, limits, markers; over the demo's tokenizer."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from openai_bls.core.engine_types import Grammar
from openai_bls.core.errors import InvalidRequestError
from openai_bls.engines.grammars import trial_worker
from openai_bls.engines.grammars.errors import GrammarError
from openai_bls.output.structured import grammar
from openai_bls_vllm.grammars.grammar_progress import GrammarProgress, marker_token_ids
from tests.unit import core_support
from tests.unit.output.structured.driving import DEMO, demo, json_schema
from tests.unit.output.structured.schemas import Schema, schemas

EOS = 2
TOO_COMPLEX = Grammar("lark", "start: X\nX: /(?s:.*)(a|b)(?s:.{500})c/ & /(?s:.*)(a|d)(?s:.{499})c/")
EXPRESSIONS = [Grammar("regex", text) for text in ("", "a?", "ab?", "[a-z]{0,4}", "a*", "(yes|no)( sir)?", "x{2}|x{5}")]
INFO = core_support.engine_info(
    engine="vllm",
    grammar_dialect="guidance",
    grammar_backend="llguidance",
    grammar_kinds=("json_schema", "regex", "lark"),
)


@cache
def grammars() -> GrammarProgress:
    return GrammarProgress(DEMO, demo().size)


def ids(text: str) -> list[int]:
    return [demo().id_of_byte[byte] for byte in text.encode()]


def of_schema(schema: Schema) -> Grammar | None:
    """Grammar of a schema; None if it is refused."""
    try:
        return grammar(json_schema(schema), INFO, param="x")
    except InvalidRequestError:
        return None


def test_the_token_after_which_nothing_may_follow_is_told() -> None:
    progress = grammars().start(Grammar("regex", "ab?"))
    assert progress.advance(ids("a")) is None
    progress.require_end()
    assert progress.advance(ids("b")) == 1
    progress.require_end()
    together = grammars().start(Grammar("json_schema", '{"enum": ["a"]}'))
    assert together.advance([*ids('"a"'), EOS]) == 3
    open_end = grammars().start(Grammar("regex", "a*"))
    assert open_end.advance(ids("aaaa")) is None


def test_before_min_tokens_the_grammar_ends_the_sequence_where_nothing_else_may_follow() -> None:
    progress = grammars().start(Grammar("regex", "[a-z]{1,3}"), min_tokens=9)
    assert not progress.is_complete()
    assert progress.advance(ids("ab")) is None
    assert progress.advance(ids("cd")) == 1
    assert grammars().start(Grammar("regex", ""), min_tokens=1).is_complete()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(wanted=st.sampled_from(EXPRESSIONS) | schemas().map(of_schema), choose=st.randoms(use_true_random=False))
def test_before_min_tokens_it_ends_where_the_embedded_mask_has_the_end_alone(
    wanted: Grammar | None, choose: random.Random
) -> None:
    assume(wanted is not None)
    assert wanted is not None
    markers = set(marker_token_ids(DEMO, (EOS,)).values())
    constraint, progress = demo().make(wanted), grammars().start(wanted, min_tokens=10**6)
    ended = progress.is_complete()
    for _ in range(12):
        # Added tokens are text to the embedded engine's grammars alone.
        allowed = set(demo().allowed(constraint).tolist()) - {EOS, *markers}
        assert ended == (not allowed)
        if ended:
            return
        token_id = choose.choice(sorted(allowed))
        assert constraint.accept(token_id)
        ended = progress.advance([token_id]) is not None


def test_at_its_limits_no_grammar_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_worker, "MAX_LEXER_STATES", 2)
    progress = grammars().start(Grammar("regex", "[a-z]{0,9}x?"), min_tokens=5)
    assert not progress.is_complete()


def test_what_the_grammar_forbids_is_an_error() -> None:
    for tokens in (ids("b"), ids("abb"), ids("acc")):
        progress = grammars().start(Grammar("regex", "ab?c?d"))
        with pytest.raises(GrammarError, match="sampled"):
            progress.advance(tokens)


def test_an_output_that_ends_too_soon_is_an_error() -> None:
    progress = grammars().start(Grammar("regex", "ab"))
    assert progress.advance(ids("a")) is None
    with pytest.raises(GrammarError, match="ended"):
        progress.require_end()


def test_limits_are_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """There vLLM's mask allows the end token, and nothing else."""
    monkeypatch.setattr(trial_worker, "MAX_LEXER_STATES", 2)
    for _ in range(2):
        with pytest.raises(GrammarError, match=r"llguidance's limits: [^<\n]+$"):
            grammars().start(Grammar("regex", "[a-z]{3,9}x")).require_end()
    # The lexer that has met them is of no use to the next request.
    monkeypatch.undo()
    with pytest.raises(GrammarError, match="ended"):
        grammars().start(Grammar("regex", "[a-z]{3,9}x")).require_end()


def test_what_is_beyond_the_budget_is_refused() -> None:
    with pytest.raises(GrammarError, match="to compile"):
        grammars().start(TOO_COMPLEX)


@pytest.mark.parametrize(
    "wanted",
    [
        Grammar("json_schema", '{"not": {}}'),
        Grammar("json_schema", "{"),
        Grammar("lark", "start: other"),
        Grammar("regex", "("),
        Grammar("regex", "a" * 300_000),
    ],
)
def test_what_does_not_compile_is_refused_in_one_line(wanted: Grammar) -> None:
    with pytest.raises(GrammarError) as caught:
        grammars().start(wanted)
    told = str(caught.value)
    assert told
    assert len(told) <= 300
    assert "\n" not in told


def test_the_tokenizers_end_and_its_text() -> None:
    assert grammars().eos_token_id == EOS
    markers = marker_token_ids(DEMO, (EOS,))
    assert {"<tool_call>", "</think>", "<|im_start|>"} <= set(markers)
    assert EOS not in markers.values()
    assert grammars().text_token_ids([*markers.values(), EOS, *ids("a"), -1, 10**6]) == ids("a")


@pytest.mark.parametrize(
    ("added", "found"),
    [
        ({"content": "[CALL]", "special": True}, True),
        ({"content": "[CALL]", "special": False}, False),
        ({"content": "<call>", "special": False}, True),
        ({"content": "<|reserved_special_token_3|>", "special": True}, False),
    ],
)
def test_markers_are_what_llguidance_takes_for_no_text(tmp_path: Path, added: dict[str, Any], found: bool) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 7, **added}]}))
    assert (added["content"] in marker_token_ids(tmp_path, ())) is found


def test_a_tokenizer_without_added_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": null}')
    assert marker_token_ids(tmp_path, ()) == {}
