"""Official tensors that hold text: prompts, words, and words with weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from openai_bls.core.errors import InvalidRequestError
from openai_bls.triton_models.tensors.arrays import Arrays


def text(value: Any, name: str) -> str:
    """The text of an element of the tensor `name`.

    Raises:
        InvalidRequestError: it is not UTF-8.
    """
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise InvalidRequestError(f"'{name}' is not UTF-8.", param=name) from None


def shared_row(arrays: Arrays, name: str, batch: int) -> list[Any]:
    """The row that all of a batch have in the tensor `name`; empty if it is not given.

    Raises:
        InvalidRequestError: they differ: those after the first would be passed over.
    """
    if name not in arrays:
        return []
    rows: list[list[Any]] = arrays[name].reshape(batch, -1).tolist()
    if any(row != rows[0] for row in rows[1:]):
        raise InvalidRequestError(f"'{name}' must be the same for all rows.", param=name)
    return rows[0]


def words(arrays: Arrays, name: str, batch: int) -> list[str]:
    """The words in the tensor `name`, the same for all rows."""
    return [text(word, name) for word in shared_row(arrays, name, batch)]


def weighted_words(arrays: Arrays, name: str, weights_name: str, batch: int) -> list[tuple[str, float]]:
    """The words of one tensor with the weights of another.

    Raises:
        InvalidRequestError: there are not as many of these as of those.
    """
    found, weights = words(arrays, name, batch), shared_row(arrays, weights_name, batch)
    if len(found) != len(weights):
        raise InvalidRequestError(
            f"'{name}' has {len(found)} elements and '{weights_name}' {len(weights)}; each word needs one weight.",
            param=weights_name,
        )
    return list(zip(found, weights, strict=True))


def bias_row(weighted: Iterable[tuple[list[int], float]]) -> np.ndarray[Any, Any]:
    """FP32 of shape [n]: the weight of each word for each of its tokens, added up. n is just enough for the highest of
    their ids."""
    bias: dict[int, float] = {}
    for tokens, weight in weighted:
        for token in tokens:
            bias[token] = bias.get(token, 0.0) + weight
    row = np.zeros(max(bias, default=-1) + 1, dtype=np.float32)
    row[list(bias)] = list(bias.values())
    return row
