from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from openai_bls.triton_models.preprocessing import token_bound as module
from openai_bls.triton_models.preprocessing.token_bound import NFC_SHRINK, TokenBound, token_bound
from tests.unit.core_support import tiny_tokenizer
from tests.unit.output import text_tokenizers


def changed(tokenizer: Tokenizer, **changes: Any) -> Tokenizer:
    copy = Tokenizer.from_str(tokenizer.to_str())
    for name, value in changes.items():
        setattr(copy, name, value)
    return copy


def nfc() -> Tokenizer:
    return changed(text_tokenizers.byte_level(), normalizer=normalizers.NFC())


def stripping() -> Tokenizer:
    tokenizer = changed(text_tokenizers.byte_level())
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True)])
    return tokenizer


BOUNDED: dict[str, Callable[[], Tokenizer]] = {
    "bytes": tiny_tokenizer,
    "byte_level": text_tokenizers.byte_level,
    "nfc": nfc,
    "stripping": stripping,
    "byte_fallback": text_tokenizers.llama2,
}


def bound_of(make: Callable[[], Tokenizer]) -> TokenBound:
    bound = token_bound(make().to_str())
    assert bound is not None
    return bound


# Pieces that normalizers make smaller, that tokens take along, or that stand for white space.
PIECES = [
    "<mask>",
    "two words 你",
    " ",
    "▁",
    "▁▁ ▁",
    "\u00a0",
    "the lazy dog. ",
    "\u1fbe\u0308\u0301",
    "\u1100\u1161\u11a8",
]


@pytest.mark.parametrize("kind", BOUNDED)
@given(
    pieces=st.lists(st.one_of(st.text(max_size=8), st.sampled_from(PIECES)), max_size=12),
    repeat=st.integers(1, 4),
)
def test_no_text_that_fits_is_refused(kind: str, pieces: list[str], repeat: int) -> None:
    text = "".join(pieces) * repeat
    text = text.encode(errors="replace").decode()
    tokenizer, bound = BOUNDED[kind](), bound_of(BOUNDED[kind])
    count = len(tokenizer.encode(text, add_special_tokens=False).ids)
    assert not bound.exceeded_by(text, count)


@pytest.mark.parametrize("kind", BOUNDED)
@pytest.mark.parametrize("text", ["ab " * 100_000, "ab" * 200_000, "人工智能" * 50_000, "a\n" * 100_000])
def test_what_is_far_too_long_is_told(kind: str, text: str) -> None:
    assert bound_of(BOUNDED[kind]).exceeded_by(text, 2048)


def test_words_tell_more_than_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = TokenBound(bytes_per_token=128, words_per_token=1)
    assert bound.exceeded_by("ab " * 1001, 1000)
    assert not bound.exceeded_by("ab " * 1000, 1000)
    # The same whatever is looked at together.
    for size in (1, 2, 3, 7):
        monkeypatch.setattr(module, "_SLICE", size)
        assert bound.exceeded_by("ab " * 11, 10)
        assert not bound.exceeded_by("  ab  abc" * 5, 10)
        assert bound.exceeded_by("  ab  abc" * 5 + " x", 10)


@given(
    text=st.text(" \n\t\r\x0b\x0c▁\u00a0\u2028ab你🙂", max_size=60), limit=st.integers(0, 40), size=st.integers(1, 4)
)
def test_the_bound_is_one_of_bytes_and_of_words(text: str, limit: int, size: int) -> None:
    """However little of the text is looked at to know."""
    data = text.encode()
    words = len(data.replace("▁".encode(), b" ").split())
    bound = TokenBound(bytes_per_token=size * 4, words_per_token=size)
    assert bound.exceeded_by(text, limit) == (len(data) > limit * size * 4 or words > limit * size)


def test_white_space_that_a_token_takes_along_does_not_count() -> None:
    tokenizer = stripping()
    text = "<mask>" + " \u00a0 \n" * 50_000
    assert len(tokenizer.encode(text, add_special_tokens=False).ids) == 1
    assert not bound_of(stripping).exceeded_by(text, 1)


def unbounded() -> Iterator[Tokenizer]:
    byte_level = text_tokenizers.byte_level()
    yield from (text_tokenizers.unigram(), text_tokenizers.word_piece(), text_tokenizers.suffix_bpe())
    for normalizer in (normalizers.NFKC(), normalizers.Strip(), normalizers.Replace("a", ""), normalizers.Lowercase()):
        yield changed(byte_level, normalizer=normalizers.Sequence([normalizers.NFC(), normalizer]))
    for step in (pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("x", "removed")):
        yield changed(byte_level, pre_tokenizer=pre_tokenizers.Sequence([step, pre_tokenizers.ByteLevel()]))
    # A byte without a token is dropped.
    description = json.loads(tiny_tokenizer().to_str())
    del description["model"]["vocab"]["Ã"]
    yield Tokenizer.from_str(json.dumps(description))


@pytest.mark.parametrize("tokenizer", list(unbounded()), ids=lambda tokenizer: "")
def test_no_bound_is_known(tokenizer: Tokenizer) -> None:
    assert token_bound(tokenizer.to_str()) is None


def test_what_nfc_does_to_a_text() -> None:
    """It makes none smaller than the bound says, and neither makes nor takes ASCII white space."""
    space = set(" \t\n\r\x0b\x0c")
    canonical = [char for char in map(chr, range(sys.maxunicode + 1)) if unicodedata.decomposition(char)[:1] not in "<"]
    canonical += map(chr, range(0xAC00, 0xD7A4))
    largest: dict[str, float] = {}
    for char in canonical:
        assert not set(unicodedata.normalize("NFC", char)) & space
        parts = unicodedata.normalize("NFD", char)
        for part in parts:
            largest[part] = max(largest.get(part, 0), len(char.encode()) / len(parts), len(part.encode()))
    for char in [*largest, *canonical]:
        if unicodedata.normalize("NFC", char) == char:
            before = sum(largest[part] for part in unicodedata.normalize("NFD", char))
            assert before <= NFC_SHRINK * len(char.encode())
