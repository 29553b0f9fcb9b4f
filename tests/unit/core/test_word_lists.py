from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.word_lists import decode, encode

WORDS = st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5).map(tuple), max_size=6)


@given(WORDS)
def test_round_trip(words: list[tuple[int, ...]]) -> None:
    array = encode(words)
    assert array.dtype == np.int32
    assert array.shape == (2, sum(map(len, words)))
    assert decode(array, "w") == words


@given(WORDS, st.integers(0, 4))
def test_padding_on_the_right_changes_nothing(words: list[tuple[int, ...]], columns: int) -> None:
    padding = np.array([[0] * columns, [-1] * columns], dtype=np.int32)
    assert decode(np.concatenate([encode(words), padding], axis=1), "w") == words


def test_official_form() -> None:
    assert encode([(5, 6), (7,)]).tolist() == [[5, 6, 7], [2, 3, -1]]
    assert encode([]).shape == (2, 0)


def test_empty_words_and_negative_ids_are_padding() -> None:
    assert decode(np.array([[5, 6, -1], [2, 2, 3]]), "w") == [(5, 6)]
    assert decode(np.array([[0], [-1]]), "w") == []


@given(st.lists(st.tuples(st.integers(-3, 9), st.integers(-3, 9)), max_size=6))
def test_any_content_is_decoded_or_refused(columns: list[tuple[int, int]]) -> None:
    array = np.array(columns, dtype=np.int32).reshape(-1, 2).T
    try:
        words = decode(array, "w")
    except InvalidRequestError:
        return
    assert all(words)
    assert sum(map(len, words)) <= len(columns)


@pytest.mark.parametrize("shape", [(2,), (1, 2), (3, 2), (2, 2, 2)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequestError, match="shape") as info:
        decode(np.zeros(shape, dtype=np.int32), "stop_words_list")
    assert info.value.param == "stop_words_list"


@pytest.mark.parametrize("ends", [[3, -1], [2, 1]])
def test_offsets_beyond_the_ids_or_backwards_are_refused(ends: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match="offset"):
        decode(np.array([[1, 2], ends]), "w")
