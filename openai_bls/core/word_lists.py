"""Word-list tensors of TensorRT-LLM: INT32 [2, n], row 0 the token ids of all words, row 1 their end offsets."""

from __future__ import annotations

from typing import Any

import numpy as np

from openai_bls.core.errors import InvalidRequestError

WordList = list[tuple[int, ...]]


def encode(words: WordList) -> np.ndarray[Any, Any]:
    """Shape [2, total ids]; row 1 is padded with -1. No words: shape [2, 0]."""
    flat = [token for word in words for token in word]
    ends = np.cumsum([len(word) for word in words], dtype=np.int64).tolist()
    return np.array([flat, ends + [-1] * (len(flat) - len(ends))], dtype=np.int32)


def decode(array: np.ndarray[Any, Any], name: str) -> WordList:
    """The words of an array of shape [2, n].

    Raises:
        InvalidRequestError: the array is not of that form; `name` is the tensor at fault.
    """
    if array.ndim != 2 or array.shape[0] != 2:
        raise InvalidRequestError(f"'{name}' must have shape [2, n], not {list(array.shape)}.", param=name)
    ids, ends = array[0].tolist(), [end for end in array[1].tolist() if end >= 0]
    words: WordList = []
    start = 0
    for end in ends:
        if not start <= end <= len(ids):
            raise InvalidRequestError(
                f"'{name}' holds the offset {end}, after {start} and with {len(ids)} ids.", param=name
            )
        # Official clients pad with empty words.
        if end > start and all(token >= 0 for token in ids[start:end]):
            words.append(tuple(ids[start:end]))
        start = end
    return words
