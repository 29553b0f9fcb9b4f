"""Grammars in vLLM's terms, held against llguidance; tests/vllm holds the same against vLLM itself."""

from __future__ import annotations

from typing import Any

import pytest

from openai_bls.core.engine_types import GenerationRequest, Grammar, SamplingParams
from openai_bls.engines.vllm.grammars import structured_outputs
from tests.unit.output.structured.driving import accepts

JSON = Grammar("json_schema", '{"type": "object", "x-guidance": {"whitespace_flexible": false}}')
REGEX = Grammar("regex", "a/b+")
LARK = Grammar("lark", '%llguidance {}\nstart: "{" part "}"\npart: /[a-z]/')


def request(**changes: Any) -> GenerationRequest:
    return GenerationRequest(1, [5], 9, **changes)


@pytest.mark.parametrize(
    ("grammar", "text"),
    [(JSON, '{"a":1}'), (REGEX, "a/b"), (LARK, "{x}")],
    ids=lambda value: getattr(value, "kind", ""),
)
@pytest.mark.parametrize("stops", [(), (3,), (3, 260)])
def test_the_text_is_accepted_as_before(grammar: Grammar, text: str, stops: tuple[int, ...]) -> None:
    found = structured_outputs.params(grammar, "llguidance", stops)
    assert list(found) == ["grammar"]
    assert found["grammar"].startswith("%llguidance ")
    written = Grammar("lark", found["grammar"])
    assert accepts(written, text)
    assert not accepts(written, text + text)
    assert not accepts(written, text[:-1])


@pytest.mark.parametrize("kind", ["ebnf", "structural_tag"])
def test_other_kinds_are_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match=kind):
        structured_outputs.params(Grammar(kind, "x"), "llguidance")
    with pytest.raises(ValueError, match="no backend"):
        structured_outputs.params(JSON, "")


@pytest.mark.parametrize(
    ("vllm", "llguidance", "backend"),
    [
        ("0.24.0", "1.7.0", "llguidance"),
        ("0.32.0+cpu", "1.7.6", "llguidance"),
        ("0.33.0", "1.9.1", "llguidance"),
        ("0.23.0", "1.7.0", ""),
        ("0.32.0", "1.6.1", ""),
        ("0.32.0", "2.0.0", ""),
        ("0.32.0", None, ""),
        ("dev", "1.7.0", ""),
    ],
)
def test_the_backend_by_version(vllm: str, llguidance: str | None, backend: str) -> None:
    assert structured_outputs.grammar_backend(vllm, llguidance) == backend
    kinds = structured_outputs.grammar_kinds(backend, vllm)
    assert kinds == (("json_schema", "regex", "lark") if backend else ())
    sentence = structured_outputs.why_not(vllm, llguidance)
    assert sentence.startswith("structured output is refused: ") != bool(backend)


def test_the_tokenizers_end_token_ends_the_sequence() -> None:
    stops = request(grammar=JSON, stop_token_ids=(7, 2))
    assert structured_outputs.sampling(stops, 2) == {"stop_token_ids": [7, 2]}
    assert structured_outputs.sampling(stops, None) == {"stop_token_ids": [7, 2]}
    goes_on = request(grammar=JSON, sampling=SamplingParams(logit_bias={4: 1.0}))
    assert structured_outputs.sampling(goes_on, 2) == {
        "stop_token_ids": [2],
        "logit_bias": {4: 1.0, 2: structured_outputs.END_BIAS},
    }


def test_a_stop_token_that_is_text_is_refused() -> None:
    assert structured_outputs.refusal(request(stop_token_ids=(7,)), [7]) is None
    assert structured_outputs.refusal(request(grammar=JSON), []) is None
    assert "stop_token_ids has 7" in str(structured_outputs.refusal(request(grammar=JSON), [7]))


def test_stop_tokens_of_the_grammar() -> None:
    assert structured_outputs.end_tokens([7, 2, 7, -1, 100], 2, 100) == [7]
