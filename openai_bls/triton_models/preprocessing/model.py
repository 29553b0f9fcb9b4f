"""Model `preprocessing` without Triton: input arrays in, output arrays out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from openai_bls.core import word_lists
from openai_bls.core.engine_types import PromptRequest
from openai_bls.core.errors import InvalidRequestError
from openai_bls.triton_models.preprocessing.prompt import PromptEncoder

Arrays = Mapping[str, np.ndarray[Any, Any]]


class Preprocessing:
    """Token ids for the official tensors (the ensemble's), or for a `PromptRequest` of ours (`exchange.prompts`).

    Args:
        tokenizer_dir: a tokenizer as `save_pretrained` writes it.
    """

    def __init__(self, tokenizer_dir: Path) -> None:
        self._encoder = PromptEncoder(tokenizer_dir)
        self.prepare = self._encoder.prepare

    def __call__(self, arrays: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """Output arrays for one request.

        Source of names and shapes: tensorrtllm_backend's all_models/inflight_batcher_llm/preprocessing.

        Raises:
            InvalidRequestError: an input is bad.
        """
        if "PROMPT_REQUEST" in arrays:
            return {"PROMPT_RESULT": self._result(arrays["PROMPT_REQUEST"])}
        if "QUERY" not in arrays:
            raise InvalidRequestError("'QUERY' is missing.", param="QUERY")
        texts = [_text(row[0], "QUERY") for row in arrays["QUERY"].reshape(-1, 1)]
        rows = [self._encoder.encode(text) for text in texts]
        if not all(rows):
            raise InvalidRequestError("'QUERY' holds an empty prompt.", param="QUERY")
        batch = len(rows)
        pad = self._encoder.pad_token_id
        eos = self._encoder.eos_token_id
        end_ids = arrays.get("END_ID", _column(-1 if eos is None else eos, batch))
        pad_ids = arrays.get("PAD_ID", _column(0 if pad is None else pad, batch))
        longest = max(len(row) for row in rows)
        padded = [
            row + [int(pad_id)] * (longest - len(row)) for row, pad_id in zip(rows, pad_ids.reshape(-1), strict=True)
        ]
        return {
            "INPUT_ID": np.array(padded, dtype=np.int32),
            "REQUEST_INPUT_LEN": np.array([[len(row)] for row in rows], dtype=np.int32),
            "BAD_WORDS_IDS": self._words(arrays, "BAD_WORDS_DICT", batch),
            "STOP_WORDS_IDS": self._words(arrays, "STOP_WORDS_DICT", batch),
            "EMBEDDING_BIAS": self._bias(arrays, batch),
            "REQUEST_OUTPUT_LEN": arrays.get("REQUEST_OUTPUT_LEN", np.zeros((batch, 0), np.int32)),
            "OUT_END_ID": end_ids.astype(np.int32),
            "OUT_PAD_ID": pad_ids.astype(np.int32),
        }

    def _result(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A packed `PromptResult` for a packed `PromptRequest`."""
        try:
            (payload,) = array.reshape(-1).tolist()
            request = msgspec.msgpack.decode(payload, type=PromptRequest)
        except (ValueError, TypeError, msgspec.DecodeError, RecursionError):
            raise InvalidRequestError("'PROMPT_REQUEST' is not one request.", param="PROMPT_REQUEST") from None
        if request.chat_template:
            # Unlike the exchange's socket this is open to all clients of the server.
            raise InvalidRequestError("'chat_template' is not taken from tensors.", param="chat_template")
        return np.array([[msgspec.msgpack.encode(self.prepare(request))]], dtype=np.object_)

    def _words(self, arrays: Arrays, name: str, batch: int) -> np.ndarray[Any, Any]:
        """Shape [batch, 2, n], the same list for every row."""
        if name not in arrays:
            return np.zeros((batch, 2, 0), dtype=np.int32)
        words = [_text(word, name) for word in _shared_row(arrays, name, batch)]
        encoded = word_lists.encode(self._encoder.encode_words(words))
        return np.repeat(encoded[np.newaxis], batch, axis=0)

    def _bias(self, arrays: Arrays, batch: int) -> np.ndarray[Any, Any]:
        """FP32 of shape [batch, n], the same for every row: the weight of each word for each of its tokens, added up.
        n is just enough for the highest of their ids."""
        names = ("EMBEDDING_BIAS_WORDS", "EMBEDDING_BIAS_WEIGHTS")
        words, weights = (_shared_row(arrays, name, batch) if name in arrays else [] for name in names)
        if len(words) != len(weights):
            raise InvalidRequestError(
                f"'{names[0]}' has {len(words)} elements and '{names[1]}' {len(weights)}; each word needs one weight.",
                param=names[1],
            )
        bias: dict[int, float] = {}
        for word, weight in zip(words, weights, strict=True):
            for token in self._encoder.encode(_text(word, names[0]), add_special_tokens=False):
                bias[token] = bias.get(token, 0.0) + weight
        row = np.zeros(max(bias, default=-1) + 1, dtype=np.float32)
        row[list(bias)] = list(bias.values())
        return np.repeat(row[np.newaxis], batch, axis=0)


def _shared_row(arrays: Arrays, name: str, batch: int) -> list[Any]:
    rows: list[list[Any]] = arrays[name].reshape(batch, -1).tolist()
    if any(row != rows[0] for row in rows[1:]):
        raise InvalidRequestError(f"'{name}' must be the same for all rows.", param=name)
    return rows[0]


def _text(value: Any, name: str) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise InvalidRequestError(f"'{name}' is not UTF-8.", param=name) from None


def _column(value: int, batch: int) -> np.ndarray[Any, Any]:
    return np.full((batch, 1), value, dtype=np.int32)
