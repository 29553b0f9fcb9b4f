from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertTokenizerFast

from openai_bls.core.engine_types import PromptRequest, PromptResult
from openai_bls.triton_models.preprocessing.prompt import PromptEncoder, load_tokenizer
from tests.unit.core_support import EOS, token_ids, write_tokenizer

USER = {"role": "user", "content": "hé"}


@pytest.fixture(scope="module")
def encoder(tokenizer_dir: Path) -> PromptEncoder:
    return PromptEncoder(tokenizer_dir)


@pytest.mark.parametrize("folder", [".", "missing"])
def test_a_tokenizer_that_is_missing(tmp_path: Path, folder: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"nothing at {tmp_path / folder}"):
        PromptEncoder(tmp_path / folder)


def prepare(encoder: PromptEncoder, **fields: Any) -> PromptResult:
    return encoder.prepare(PromptRequest(messages=[USER], **fields))


def test_a_chat_is_rendered_by_the_template(encoder: PromptEncoder) -> None:
    text = "<|im_start|>user\nhé<|im_end|>\n"
    result = prepare(encoder)
    assert result == PromptResult([token_ids(text + "<|im_start|>assistant\n")])
    # The markers are single tokens, not their spelling.
    assert result.prompt_token_ids[0].count(EOS) == 1
    assert prepare(encoder, chat_template_kwargs={"add_generation_prompt": False}) == PromptResult([token_ids(text)])


def test_raw_prompts_are_taken_as_they_stand(encoder: PromptEncoder) -> None:
    result = encoder.prepare(PromptRequest(prompts=["a b", "", "中"]))
    assert result.prompt_token_ids == [token_ids("a b"), [], token_ids("中")]
    assert encoder.prepare(PromptRequest(prompts=[])) == PromptResult([])


def test_a_prediction_is_the_inside_of_an_output(tmp_path: Path, encoder: PromptEncoder) -> None:
    assert prepare(encoder, prediction="a 中").prediction == token_ids("a 中")
    bounded = PromptEncoder(write_tokenizer(tmp_path), lambda: 70_000)
    result = prepare(bounded, prediction="a" * 70_001)
    assert (result.param, result.code) == ("prediction", "string_above_max_length")
    assert "The prediction has 70001 bytes" in (result.error or "")


def test_words_in_both_of_their_forms(encoder: PromptEncoder) -> None:
    words = encoder.encode_words(["ab", "", "\nx", "ab"])
    assert words == [tuple(token_ids("ab")), tuple(token_ids(" ab")), tuple(token_ids("\nx"))]


def test_what_a_tokenizer_was_built_from_is_dropped(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "Qwen2Tokenizer"}))
    assert not {"_vocab", "_merges"} & set(vars(load_tokenizer(folder)))
    encoder = PromptEncoder(folder)
    assert encoder.encode("ab 中") == token_ids("ab 中")
    assert len(prepare(encoder).prompt_token_ids[0]) > 0


def test_threads_prepare_side_by_side(tokenizer_dir: Path) -> None:
    """A tokenizer that changed its settings while another thread encodes would raise `Already borrowed`."""
    encoder = PromptEncoder(tokenizer_dir)
    requests = [
        PromptRequest(messages=[{"role": "user", "content": f"{at} é " * (at % 40 * 20)}])
        if at % 2
        else PromptRequest(prompts=[f"{at} 能" * (at % 50 * 20)])
        for at in range(400)
    ]
    expected = [PromptEncoder(tokenizer_dir).prepare(request) for request in requests[:40]]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(encoder.prepare, requests))
    assert found[:40] == expected
    assert all(result.error is None for result in found)


LONG = "ab " * 400_000


def test_what_cannot_fit_is_refused_before_it_is_tokenized(
    tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = PromptEncoder(tokenizer_dir)

    def tokenize(*args: Any, **options: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(encoder, "encode", tokenize)
    long_message = {"role": "user", "content": LONG}
    for request, param in (
        (PromptRequest(prompts=["x", LONG][1:], max_prompt_tokens=1000), "prompt"),
        (PromptRequest(prompts=["x", LONG], max_prompt_tokens=1000), "prompt[1]"),
        (PromptRequest(messages=[long_message], max_prompt_tokens=1000), "messages"),
    ):
        result = encoder.prepare(request)
        assert (result.code, result.param) == ("context_length_exceeded", param)
        assert "1000 tokens" in (result.error or "")


def test_what_the_template_leaves_out_does_not_count(tmp_path: Path) -> None:
    encoder = PromptEncoder(write_tokenizer(tmp_path, "{{ messages[-1].content }}"))
    messages = [{"role": "user", "content": LONG}, USER]
    assert encoder.prepare(PromptRequest(messages=messages, max_prompt_tokens=10)).error is None


def test_text_of_too_many_bytes(tokenizer_dir: Path) -> None:
    encoder = PromptEncoder(tokenizer_dir, lambda: 200_000)
    for text, taken in (("a" * 200_000, True), ("a" * 200_001, False), ("é" * 100_001, False)):
        result = encoder.prepare(PromptRequest(prompts=[text]))
        assert (result.error is None) == taken
        if not taken:
            assert result.code == "string_above_max_length"
            assert "max_prompt_bytes" in (result.error or "")


@pytest.fixture(scope="module")
def pairs_encoder(tmp_path_factory: pytest.TempPathFactory) -> PromptEncoder:
    """Of a BERT, which tells the texts of a pair apart by token types."""
    folder = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##a", "##b"]))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return PromptEncoder(folder)


@given(pairs=st.lists(st.tuples(st.text("ab ", max_size=9), st.text("ab c", max_size=9)), min_size=1, max_size=4))
def test_pairs_are_what_the_tokenizer_makes_of_two_texts(
    pairs_encoder: PromptEncoder, pairs: list[tuple[str, str]]
) -> None:
    result = pairs_encoder.prepare(PromptRequest(pairs=pairs))
    for prompt, begin, pair in zip(result.prompt_token_ids, result.compressed_token_type_ids, pairs, strict=True):
        wanted = pairs_encoder._tokenizer(*pair)
        assert prompt == wanted["input_ids"]
        assert [int(place >= begin) for place in range(len(prompt))] == wanted["token_type_ids"]


def test_pairs_without_token_types_and_pairs_that_are_too_long(encoder: PromptEncoder) -> None:
    assert encoder.prepare(PromptRequest(pairs=[("a b", "中")])) == PromptResult([token_ids("a b中")])
    result = encoder.prepare(PromptRequest(pairs=[("a", "b"), ("a", "é" * 3000)], max_prompt_tokens=4))
    assert (result.param, result.code) == ("prompt[1]", "context_length_exceeded")
