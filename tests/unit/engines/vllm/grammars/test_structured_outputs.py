"""Grammars in vLLM's terms, held against llguidance; tests/vllm holds the same against vLLM itself."""

from __future__ import annotations

from typing import Any

import pytest

from openai_bls.core.engine_types import GenerationRequest, Grammar, SamplingParams
from openai_bls.engines.grammars.errors import GrammarError
from openai_bls.engines.vllm.grammars import structured_outputs
from openai_bls.engines.vllm.grammars.grammars import Grammars
from tests.unit.output.structured.driving import DEMO, accepts, demo

EOS = 2
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
    found = structured_outputs.lark(grammar, stops)
    assert found.startswith("%llguidance ")
    written = Grammar("lark", found)
    assert accepts(written, text)
    assert not accepts(written, text + text)
    assert not accepts(written, text[:-1])


@pytest.mark.parametrize("version", ["1.7.0", "1.7.6", "1.9.1"])
def test_releases_that_were_tried(version: str) -> None:
    assert structured_outputs.why_not(version) == ""


@pytest.mark.parametrize("version", ["1.6.1", "1.70.0", "2.0.0", "dev", None])
def test_other_releases_are_refused(version: str | None) -> None:
    assert structured_outputs.why_not(version).startswith("structured output is refused: llguidance ")


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
    grammars = Grammars(DEMO, demo().size, (EOS,))
    text = demo().id_of_byte[ord("a")]
    with pytest.raises(GrammarError, match=f"stop_token_ids has {text}"):
        grammars.constrain(request(grammar=JSON, stop_token_ids=(EOS, text)))
    found = grammars.constrain(request(grammar=JSON, stop_token_ids=(EOS, 1)))
    assert found.structured_outputs == {"grammar": structured_outputs.lark(JSON, (1,))}


def test_stop_tokens_of_the_grammar() -> None:
    assert structured_outputs.end_tokens([7, 2, 7, -1, 100], 2, 100) == [7]
