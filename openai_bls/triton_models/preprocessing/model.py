"""Model `preprocessing` without Triton: input arrays in, output arrays out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from openai_bls.core import word_lists
from openai_bls.core.engine_types import PromptRequest
from openai_bls.core.errors import InvalidRequestError, TooLargeError
from openai_bls.core.manifest import EngineLoadError, Manifest, load_manifest
from openai_bls.core.settings import PreprocessingSettings
from openai_bls.triton_models.preprocessing.prompt import PromptEncoder
from openai_bls.triton_models.tensors import word_tensors
from openai_bls.triton_models.tensors.arrays import Arrays
from openai_bls.triton_models.tensors.models import PREPROCESSING

logger = logging.getLogger(__name__)

# Characters up to which a text is tokenized without a look at the engine's limit.
_SHORT_TEXT = 4096
# `max_prompt_bytes`, where it is not set: enough for English text of a whole context, and at least this.
_BYTES_PER_TOKEN = 8
_MAX_PROMPT_BYTES = 1 << 20
_OUTPUTS = frozenset(tensor.name for tensor in PREPROCESSING.outputs)


class Preprocessing:
    """Token ids for the official tensors (the ensemble's), or for a `PromptRequest` of ours (`exchange.prompts`).

    Args:
        tokenizer_dir: a tokenizer as `save_pretrained` writes it.
        settings: settings of the model.
        engine_dir: finds the version folder of the engine that the prompts are for; without its manifest no context is
            known.
    """

    def __init__(
        self,
        tokenizer_dir: Path,
        settings: PreprocessingSettings | None = None,
        engine_dir: Callable[[], Path | None] = lambda: None,
    ) -> None:
        self._settings = settings or PreprocessingSettings()
        self._engine_dir = engine_dir
        self._encoder = PromptEncoder(tokenizer_dir, self._max_prompt_bytes, self._settings.prompt_cache_bytes)
        self.prepare, self.prepare_quickly = self._encoder.prepare, self._encoder.prepare_quickly
        if self._encoder.template_problem is not None:
            logger.warning("conversations are refused (501): %s", self._encoder.template_problem)
        if self._takes_images():
            try:
                self._encoder.load_processor()
            except InvalidRequestError as error:  # each request with an image is told the same
                logger.error("%s", error.message)

    def __call__(self, arrays: Arrays, outputs: frozenset[str] = frozenset()) -> dict[str, np.ndarray[Any, Any]]:
        """Output arrays for one request.

        Source of names and shapes: tensorrtllm_backend's all_models/inflight_batcher_llm/preprocessing.

        Args:
            arrays: the input tensors by name.
            outputs: names of the outputs to send, as Triton tells them: all where the client names none.

        Raises:
            InvalidRequestError: an input is bad, or one is missing.
        """
        limit = self._settings.max_request_bytes
        if sum(len(text) for array in arrays.values() if array.dtype == object for text in array.flat) > limit:
            raise TooLargeError(limit)
        if "PROMPT_REQUEST" in arrays:
            return {"PROMPT_RESULT": self._result(arrays["PROMPT_REQUEST"])}
        _check_given(arrays, outputs)
        texts = [word_tensors.text(row[0], "QUERY") for row in arrays["QUERY"].reshape(-1, 1)]
        if max(map(len, texts)) > _SHORT_TEXT:
            context = self._context_length()
            for text in texts:
                self._encoder.check_length(text, context, "QUERY")
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
            # Officially what decoder-only models get.
            "DECODER_INPUT_ID": pad_ids.astype(np.int32),
            "REQUEST_DECODER_INPUT_LEN": _column(1, batch),
            "BAD_WORDS_IDS": self._words(arrays, "BAD_WORDS_DICT", batch),
            "STOP_WORDS_IDS": self._words(arrays, "STOP_WORDS_DICT", batch),
            "EMBEDDING_BIAS": self._bias(arrays, batch),
            "REQUEST_OUTPUT_LEN": arrays.get("REQUEST_OUTPUT_LEN", np.zeros((batch, 0), np.int32)),
            "OUT_END_ID": end_ids.astype(np.int32),
            "OUT_PAD_ID": pad_ids.astype(np.int32),
        }

    def close(self) -> None:
        """End the processes that it has started."""
        self._encoder.close()

    def _max_prompt_bytes(self) -> int:
        automatic = max(_MAX_PROMPT_BYTES, _BYTES_PER_TOKEN * (self._context_length() or 0))
        return self._settings.max_prompt_bytes or automatic

    def _takes_images(self) -> bool:
        manifest = self._manifest()
        return manifest is not None and manifest.max_images > 0

    def _context_length(self) -> int | None:
        """The engine's, which may be another after a reload: read for long prompts alone."""
        manifest = self._manifest()
        return None if manifest is None else manifest.max_model_len

    def _manifest(self) -> Manifest | None:
        folder = self._engine_dir()
        try:
            return None if folder is None else load_manifest(folder)
        except EngineLoadError:
            return None

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
        encoded = word_lists.encode(self._encoder.encode_words(word_tensors.words(arrays, name, batch)))
        return np.repeat(encoded[np.newaxis], batch, axis=0)

    def _bias(self, arrays: Arrays, batch: int) -> np.ndarray[Any, Any]:
        """FP32 of shape [batch, n], the same for every row."""
        weighted = word_tensors.weighted_words(arrays, "EMBEDDING_BIAS_WORDS", "EMBEDDING_BIAS_WEIGHTS", batch)
        row = word_tensors.bias_row(
            (self._encoder.encode(word, add_special_tokens=False), weight) for word, weight in weighted
        )
        return np.repeat(row[np.newaxis], batch, axis=0)


def _check_given(arrays: Arrays, outputs: frozenset[str]) -> None:
    """Refuse a request without a prompt, or without the length that it names as an output: a step of an ensemble."""
    if "QUERY" not in arrays:
        raise InvalidRequestError("'QUERY' is missing ('text_input' of an ensemble).", param="QUERY")
    length = "REQUEST_OUTPUT_LEN"
    if length not in arrays and length in outputs < _OUTPUTS:
        raise InvalidRequestError(f"'{length}' is missing ('max_tokens' of an ensemble).", param=length)


def _column(value: int, batch: int) -> np.ndarray[Any, Any]:
    return np.full((batch, 1), value, dtype=np.int32)
