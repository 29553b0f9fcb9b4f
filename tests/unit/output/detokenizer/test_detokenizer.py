from __future__ import annotations

import itertools
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.output.detokenizer.base import continuation
from openai_bls.output.detokenizer.byte_fallback import ByteFallbackFactory
from openai_bls.output.detokenizer.byte_level import ByteLevelFactory
from openai_bls.output.detokenizer.factory import DetokenizerFactory, from_tokenizer, load
from openai_bls.output.detokenizer.windowed import WindowedFactory
from tests.unit.output import text_tokenizers
from tests.unit.output.text_tokenizers import TEXTS

if TYPE_CHECKING:
    from pathlib import Path

KINDS = {
    "byte_level": ByteLevelFactory,
    "llama2": ByteFallbackFactory,
    "double_strip": ByteFallbackFactory,
    "gemma": ByteFallbackFactory,
    "unigram": ByteFallbackFactory,
    "word_piece": WindowedFactory,
    "suffix_bpe": WindowedFactory,
    "ctc": WindowedFactory,
    "no_decoder": WindowedFactory,
}
every_kind = pytest.mark.parametrize("kind", KINDS)
moderate = settings(deadline=None, max_examples=60)


@cache
def tokenizer_of(kind: str) -> Any:
    return getattr(text_tokenizers, kind)()


@cache
def factory_of(kind: str) -> DetokenizerFactory:
    return from_tokenizer(tokenizer_of(kind))


@cache
def interesting_ids(kind: str) -> list[int]:
    """Ids of spaces, byte tokens and added tokens, which random ids hit too rarely."""
    vocabulary = tokenizer_of(kind).get_vocab()
    byte_tokens = {"<0x20>", "<0xE4>", "<0xBD>", "<0xA0>", "<0xF0>", "<0x9F>", "<0x41>", "<0x+F>"}
    added = set(tokenizer_of(kind).get_added_tokens_decoder())
    return [
        token_id
        for token, token_id in vocabulary.items()
        if token in byte_tokens or token_id in added or len(token) == 1 or token in ("▁", "▁▁")
    ]


@cache
def sequences(kind: str) -> st.SearchStrategy[list[int]]:
    size = tokenizer_of(kind).get_vocab_size()
    token_id = st.one_of(st.sampled_from(interesting_ids(kind)), st.integers(0, size - 1), st.integers(0, size + 3))
    texts = st.sampled_from([tokenizer_of(kind).encode(text).ids for text in TEXTS])
    parts = st.lists(st.one_of(st.lists(token_id, max_size=16), texts), min_size=1, max_size=2)
    return parts.map(lambda parts: [token_id for part in parts for token_id in part])


def draw_ids(data: st.DataObject, kind: str) -> list[int]:
    return data.draw(sequences(kind), label="ids")


cycles = st.lists(st.integers(0, 5), max_size=6).map(lambda counts: [*counts, 1])


def draw_chunks(data: st.DataObject, ids: list[int]) -> list[list[int]]:
    """Cut the ids into chunks whose lengths come round in a cycle."""
    counts = itertools.cycle(data.draw(cycles, label="chunk lengths"))
    chunks, place = list[list[int]](), 0
    while place < len(ids):
        count = next(counts)
        chunks.append(ids[place : place + count])
        place += count
    return chunks


def stream(
    factory: DetokenizerFactory,
    chunks: list[list[int]],
    skip_special_tokens: bool = True,
    prompt: list[int] | None = None,
    keep_special: frozenset[str] = frozenset(),
) -> str:
    detokenizer = factory.new(skip_special_tokens, prompt or (), keep_special=keep_special)
    return "".join([detokenizer.push(chunk) for chunk in chunks]) + detokenizer.finish()


@every_kind
@moderate
@given(data=st.data(), skip=st.booleans())
def test_any_chunking_equals_the_whole_decode(kind: str, data: st.DataObject, skip: bool) -> None:
    ids = draw_ids(data, kind)
    expected = tokenizer_of(kind).decode(ids, skip_special_tokens=skip)
    assert stream(factory_of(kind), draw_chunks(data, ids), skip) == expected


@every_kind
@moderate
@given(data=st.data(), skip=st.booleans())
def test_after_a_prompt_the_text_is_what_follows_the_prompts(kind: str, data: st.DataObject, skip: bool) -> None:
    ids = draw_ids(data, kind)
    prompt = draw_ids(data, kind)
    decode = tokenizer_of(kind).decode
    if kind == "byte_level":
        expected = decode(ids, skip_special_tokens=skip)
    else:
        before = decode(prompt, skip_special_tokens=skip)
        whole = decode(prompt + ids, skip_special_tokens=skip)
        expected = continuation(before, whole)
    assert stream(factory_of(kind), draw_chunks(data, ids), skip, prompt) == expected


@cache
def specials(kind: str) -> dict[int, str]:
    return {i: token.content for i, token in tokenizer_of(kind).get_added_tokens_decoder().items() if token.special}


@every_kind
@moderate
@given(data=st.data(), with_prompt=st.booleans())
def test_kept_special_tokens_stay(kind: str, data: st.DataObject, with_prompt: bool) -> None:
    """The text is the decode of the ids without the special ones that are not kept."""
    keep = frozenset(data.draw(st.sets(st.sampled_from(["none such", *specials(kind).values()])), label="keep"))
    special = st.lists(st.sampled_from([0, *specials(kind)]), max_size=3)

    def draw() -> list[int]:
        return [*data.draw(special), *draw_ids(data, kind), *data.draw(special), *draw_ids(data, kind)]

    def shown(ids: list[int]) -> list[int]:
        return [i for i in ids if specials(kind).get(i) in (None, *keep)]

    ids, prompt = draw(), draw() if with_prompt else []
    decode = tokenizer_of(kind).decode
    if kind == "byte_level" or not prompt:
        expected = decode(shown(ids), skip_special_tokens=False)
    else:
        before = decode(shown(prompt), skip_special_tokens=False)
        expected = continuation(before, decode(shown(prompt + ids), skip_special_tokens=False))
    assert stream(factory_of(kind), draw_chunks(data, ids), True, prompt, keep) == expected
    # Without special tokens to skip there is nothing to keep.
    everything = stream(factory_of(kind), draw_chunks(data, ids), False, prompt, keep)
    assert everything == stream(factory_of(kind), [ids], False, prompt)


@every_kind
@pytest.mark.parametrize("skip", [True, False])
def test_decode_is_the_tokenizers(kind: str, skip: bool) -> None:
    assert type(factory_of(kind)) is KINDS[kind]
    ids = [*tokenizer_of(kind).encode("é 你 abc").ids, *specials(kind)]
    assert factory_of(kind).decode(ids, skip) == tokenizer_of(kind).decode(ids, skip_special_tokens=skip)
    assert factory_of(kind).decode(ids) == tokenizer_of(kind).decode(ids, skip_special_tokens=False)


def test_split_characters_are_held() -> None:
    vocabulary = tokenizer_of("byte_level").get_vocab()
    ids = [vocabulary[char] for char in "ðŁĳį"]
    detokenizer = factory_of("byte_level").new()
    assert [detokenizer.push([token_id]) for token_id in ids] == ["", "", "", "👍"]
    assert detokenizer.push(ids[:2]) == ""
    assert detokenizer.push([vocabulary["A"]]) == "\ufffdA"
    assert detokenizer.push(ids[:3]) == ""
    assert detokenizer.push([vocabulary["<|im_end|>"]]) == ""
    assert detokenizer.push(ids[3:]) == "👍"
    assert detokenizer.push(ids[:1]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_added_tokens_inside_the_byte_alphabet_are_bytes() -> None:
    tokenizer, factory = tokenizer_of("byte_level"), factory_of("byte_level")
    for token, raw in {
        "<tool_call>": b"<tool_call>",
        "two words 你": "two words 你".encode(),
        "café": b"caf\xe9",
        "Ġĉ": b" \t",
        "<特>": "<特>".encode(),
    }.items():
        token_id = tokenizer.token_to_id(token)
        assert factory.token_bytes(token_id) == raw
        assert tokenizer.decode([token_id], skip_special_tokens=False) == raw.decode(errors="replace")
    assert factory.token_bytes(100_000) == b""


def test_token_bytes_of_other_kinds() -> None:
    tokenizer, factory = tokenizer_of("llama2"), factory_of("llama2")
    assert factory.token_bytes(tokenizer.token_to_id("<0xE4>")) == b"\xe4"
    assert factory.token_bytes(tokenizer.token_to_id("▁▁")) == b"  "
    assert factory.token_bytes(tokenizer.token_to_id("<s>")) == b"<s>"
    assert factory.token_bytes(100_000) == b""
    word_piece = tokenizer_of("word_piece")
    assert factory_of("word_piece").token_bytes(word_piece.token_to_id("[SEP]")) == b"[SEP]"
    assert factory_of("word_piece").token_bytes(100_000) == b""


@every_kind
def test_bytes_of_special_tokens_are_what_they_decode_to(kind: str) -> None:
    for token_id in specials(kind):
        text = tokenizer_of(kind).decode([token_id], skip_special_tokens=False)
        assert factory_of(kind).token_bytes(token_id).decode(errors="replace") == text
        if kind != "byte_level":
            assert factory_of(kind).token_text(token_id) == text


def test_token_text() -> None:
    byte_level, llama2 = tokenizer_of("byte_level"), tokenizer_of("llama2")
    assert factory_of("byte_level").token_text(byte_level.token_to_id("ä")) == "bytes:\\xe4"
    assert factory_of("byte_level").token_text(byte_level.token_to_id("Ġ")) == " "
    assert factory_of("byte_level").token_text(byte_level.token_to_id("<|im_end|>")) == "<|im_end|>"
    assert factory_of("byte_level").token_text(100_000) == ""
    assert factory_of("llama2").token_text(llama2.token_to_id("<0xE4>")) == "bytes:\\xe4"
    assert factory_of("llama2").token_text(llama2.token_to_id("<0x41>")) == "A"
    assert factory_of("llama2").token_text(llama2.token_to_id("▁▁")) == "  "


def byte_run(*values: int) -> list[int]:
    return [tokenizer_of("llama2").token_to_id(f"<0x{value:02X}>") for value in values]


def test_a_run_of_byte_tokens_is_held_while_it_can_be_valid() -> None:
    x = tokenizer_of("llama2").token_to_id("x")
    detokenizer = factory_of("llama2").new()
    assert detokenizer.push([x]) == "x"
    assert detokenizer.push(byte_run(0xE4, 0xBD, 0xA0)) == ""
    assert detokenizer.push([x]) == "你x"
    assert detokenizer.push(byte_run(0xE4, 0xBD, 0xA0, 0xFF)) == "\ufffd" * 4
    assert detokenizer.push(byte_run(0x41)) == "\ufffd"
    assert detokenizer.push([x]) == "x"
    assert detokenizer.push(byte_run(0x41, 0xE4, 0xBD)) == ""
    assert detokenizer.finish() == "\ufffd" * 3


@every_kind
@moderate
@given(data=st.data(), skip=st.booleans())
def test_stateless_chunks(kind: str, data: st.DataObject, skip: bool) -> None:
    tokenizer = tokenizer_of(kind)
    ids = draw_ids(data, kind)
    if skip and kind != "byte_level":
        # A context of skipped ids only would look like the beginning.
        ids = [i for i in ids if tokenizer.decode([i]) or tokenizer.id_to_token(i)]
        specials = tokenizer.get_added_tokens_decoder()
        ids = [i for i in ids if i not in specials or not specials[i].special]
    if kind in ("llama2", "double_strip", "gemma"):
        # Invalid runs of byte tokens are where it does not hold.
        ids = tokenizer.encode(tokenizer.decode(ids).replace("\ufffd", "é")).ids
    chunks = draw_chunks(data, ids)
    text, context = "", list[int]()
    for place, chunk in enumerate(chunks):
        final = place == len(chunks) - 1
        text += factory_of(kind).decode_chunk(context[-16:], chunk, final, skip)
        context += chunk
    assert text == tokenizer.decode(ids, skip_special_tokens=skip)


def test_stateless_chunks_of_a_run_longer_than_the_context() -> None:
    tokenizer, text = tokenizer_of("llama2"), "x👍🏽人工智能正在改变世界👨‍👩‍👧‍👦 x"
    ids = tokenizer.encode(text).ids
    assert len(ids) > 48
    chunks = [
        factory_of("llama2").decode_chunk(ids[max(0, i - 16) : i], ids[i : i + 1], i + 1 == len(ids))
        for i in range(len(ids))
    ]
    assert "".join(chunks) == text


def test_load(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path)
    file = tmp_path / "tokenizer.json"
    tokenizer_of("byte_level").save(str(file))
    ids = tokenizer_of("byte_level").encode("你好 👍").ids
    for path in (tmp_path, file, str(file)):
        assert stream(load(path), [ids]) == "你好 👍"
    file.write_text("{}")
    with pytest.raises(ValueError, match="not a tokenizer"):
        load(file)
