"""What a request becomes; `test_engine` has one that goes through the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.engine_types import EngineInfo, GenerationRequest, Grammar, SamplingParams
from openai_bls_tensorrt_llm.sampling import end_token, grammar_end, sampling
from tests_tensorrt_llm.engine.scripted_api import END

INFO = EngineInfo(
    engine="tensorrt_llm", model_name="m", max_model_len=64, max_batch_size=4, vocab_size=100, eos_token_ids=(END, 91)
)


def request(**fields: Any) -> GenerationRequest:
    return GenerationRequest(request_id=1, prompt_token_ids=[1, 2, 3], max_tokens=20, **fields)


def test_the_end_token() -> None:
    """The model's own first, since grammars end with it."""
    assert end_token(request(), INFO) is None
    assert end_token(request(stop_token_ids=(7, 8)), INFO) == 7
    assert end_token(request(stop_token_ids=(91, 7)), INFO) == 91
    assert end_token(request(stop_token_ids=(7, 91, END)), INFO) == END


GRAMMAR = Grammar("regex", "a+")


def test_only_the_grammars_own_end_token_ends_what_a_grammar_holds() -> None:
    """The grammar takes the model's other end tokens for text, which would end the output in the middle."""
    asked = request(stop_token_ids=(END, 91, 7), bad_words=((5, 6),), grammar=GRAMMAR)
    assert end_token(asked, INFO, 91) == 91
    found = sampling(asked, INFO, 91, 91)
    # A stop token that the client chose stays one.
    assert (found.end_id, found.stop_token_ids, found.bad_words) == (91, (7,), ((5, 6), (END,)))
    assert end_token(request(stop_token_ids=(END, 91)), INFO, 91) == END
    assert sampling(request(stop_token_ids=(END, 91)), INFO, END, 91).stop_token_ids == (91,)
    # Without any end token (ignore_eos), or where the tokenizer's is not known, nothing changes.
    assert end_token(request(grammar=GRAMMAR), INFO, 91) is None
    assert sampling(request(grammar=GRAMMAR), INFO, None, 91).bad_words == ()
    assert sampling(asked, INFO, END, None).stop_token_ids == (91, 7)


@pytest.mark.parametrize("eos", ["<e>", {"content": "<e>"}])
def test_the_end_token_of_grammars(tmp_path: Path, eos: object) -> None:
    assert grammar_end(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    tokenizer = {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 9, "content": "<e>"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert grammar_end(tmp_path) == 9
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": null}')
    assert grammar_end(tmp_path) is None


def test_a_top_k_of_all_is_none() -> None:
    assert sampling(request(sampling=SamplingParams(top_k=100)), INFO, END).top_k == 0
    assert sampling(request(sampling=SamplingParams(top_k=99)), INFO, END).top_k == 99
