"""A GGUF file loaded by llama.cpp, and the context that decodes batches of its sequences."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from openai_bls.core.manifest import EngineLoadError, short
from openai_bls_llama_cpp import library
from openai_bls_llama_cpp.memory import KvCache

STEP_TOKENS = 512
"""Tokens of one step, new ones and those of prompts together."""

MAX_PLACES = 256
"""Most sequences of a context (`LLAMA_MAX_SEQ`)."""

_NO_ROOM = 1


class Row(NamedTuple):
    """Consecutive tokens of one sequence in a step."""

    place: int
    """Number of the sequence in llama.cpp's memory."""
    first: int
    """Position of the first token."""
    token_ids: Sequence[int]
    has_logits: bool
    """The logits after the last token are wanted."""


class DecodeError(Exception):
    """llama.cpp has failed in a step."""


class LlamaModel:
    """A model and one context with places for several sequences.

    Args:
        file: the GGUF file.
        places: sequences that the context holds.
        cache: size of the KV cache, and whether each place has a part of it.
        threads: threads of a step.

    Raises:
        EngineLoadError: llama.cpp does not read the file, the model is none that generates text token by token, or the
            memory does not suffice; one sentence.
    """

    def __init__(self, file: Path, places: int, cache: KvCache, threads: int) -> None:
        self._lib = lib = library.load()
        self._context = None
        library.take_error()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = lib.llama_model_load_from_file(str(file).encode(), params)
        if not self._model:
            raise EngineLoadError(f"llama.cpp does not load {short(file)}: {_reason()}")
        self.description = self._describe()
        if lib.llama_model_has_encoder(self._model) or lib.llama_model_is_diffusion(self._model):
            self.close()
            raise EngineLoadError(f"{short(file)} ({self.description}) does not generate text token by token")
        self.vocab_size = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model)))
        self.can_share = not (lib.llama_model_is_recurrent(self._model) or lib.llama_model_is_hybrid(self._model))
        """A sequence's memory can be cut and shared at any token, which a recurrent state cannot."""
        self._context = lib.llama_init_from_model(self._model, self._context_params(places, cache, threads))
        if not self._context:
            self.close()
            raise EngineLoadError(
                f"llama.cpp has no room for {cache.tokens:,} tokens of {short(file)} ({_reason()}): give fewer with "
                "--max-tokens-in-kv-cache and --max-model-len"
            )
        self._memory = lib.llama_get_memory(self._context)
        self.cells = int(lib.llama_n_ctx(self._context))
        """Tokens of all sequences together, which llama.cpp rounds up."""
        self.in_parts = cache.in_parts
        self._make_batch()

    def _describe(self) -> str:
        text = ctypes.create_string_buffer(128)
        self._lib.llama_model_desc(self._model, text, len(text))
        return text.value.decode(errors="replace")

    def _context_params(self, places: int, cache: KvCache, threads: int) -> library.ContextParams:
        params: library.ContextParams = self._lib.llama_context_default_params()
        params.n_ctx = cache.tokens
        params.n_batch = params.n_ubatch = STEP_TOKENS
        params.n_seq_max = params.n_outputs_max = places
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = not cache.in_parts
        return params

    def _make_batch(self) -> None:
        self._tokens = np.zeros(STEP_TOKENS, np.int32)
        self._positions = np.zeros(STEP_TOKENS, np.int32)
        self._sequences = np.zeros(STEP_TOKENS, np.int32)
        self._wanted = np.zeros(STEP_TOKENS, np.int8)
        # One sequence for each token: a count, and the address of its number.
        self._counts = np.ones(STEP_TOKENS, np.int32)
        self._addresses = (self._sequences.ctypes.data + 4 * np.arange(STEP_TOKENS)).astype(np.uint64)

    def decode(self, rows: Sequence[Row]) -> bool:
        """Compute a step of at most `STEP_TOKENS` tokens; False if the cells do not suffice, and nothing is changed.

        With parts, llama.cpp computes together what is in rows of consecutive places, in this order, up to the length
        of the shortest; the rest it computes afterwards, and reads all weights again.

        Raises:
            DecodeError: llama.cpp has failed.
        """
        end = 0
        self._wanted[:] = 0
        self._outputs = sum(row.has_logits for row in rows)
        for row in rows:
            start, end = end, end + len(row.token_ids)
            self._tokens[start:end] = row.token_ids
            self._positions[start:end] = np.arange(row.first, row.first + end - start)
            self._sequences[start:end] = row.place
            if row.has_logits:
                self._wanted[end - 1] = 1
        arrays = (self._positions, self._counts, self._addresses, self._wanted)
        batch = library.Batch(end, self._tokens.ctypes.data, None, *(array.ctypes.data for array in arrays))
        status = self._lib.llama_decode(self._context, batch)
        if status not in (0, _NO_ROOM):
            raise DecodeError(f"llama_decode returned {status} ({_reason()})")
        return bool(status == 0)

    def logits(self) -> npt.NDArray[np.float32]:
        """Logits of the rows of the last step that want them, in their order.

        The array has shape [rows, vocabulary] and lies in llama.cpp's memory: it may be changed, and holds until the
        next step.
        """
        address = self._lib.llama_get_logits(self._context)
        if not address:
            raise DecodeError(f"there are no logits ({_reason()})")
        shape = self._outputs, self.vocab_size
        return np.ctypeslib.as_array((ctypes.c_float * math.prod(shape)).from_address(address)).reshape(shape)

    def cut(self, place: int, length: int) -> bool:
        """Forget all but the first `length` tokens of a sequence; False if only all of it can be forgotten."""
        return bool(self._lib.llama_memory_seq_rm(self._memory, place, length, -1))

    def share(self, source: int, target: int, length: int) -> None:
        """Let the empty place `target` begin with the first `length` tokens of `source`: of one cache in the same
        cells, of parts in a copy.

        Raises:
            DecodeError: llama.cpp has failed.
        """
        if self.in_parts:
            # llama_memory_seq_cp would copy whole parts, and ends the process if it is to copy less.
            self._restore(target, self._state(source))
            self.cut(target, length)
        else:
            self._lib.llama_memory_seq_cp(self._memory, source, target, 0, length)

    def swap(self, one: int, other: int) -> None:
        """Let two places change what they hold.

        Raises:
            DecodeError: llama.cpp has failed.
        """
        states = self._state(one), self._state(other)
        self._restore(other, states[0])
        self._restore(one, states[1])

    def _state(self, place: int) -> npt.NDArray[np.uint8]:
        """A copy of what a place holds: its used cells alone."""
        size = self._lib.llama_state_seq_get_size(self._context, place)
        state = np.empty(size, np.uint8)
        if self._lib.llama_state_seq_get_data(self._context, state.ctypes.data, size, place) != size:
            raise DecodeError(f"a sequence's state cannot be read ({_reason()})")
        return state

    def _restore(self, place: int, state: npt.NDArray[np.uint8]) -> None:
        # An empty state would leave what is there.
        self.cut(place, 0)
        if self._lib.llama_state_seq_set_data(self._context, state.ctypes.data, state.size, place) != state.size:
            raise DecodeError(f"a sequence's state cannot be restored ({_reason()})")

    def close(self) -> None:
        """Free the memory. Safe to call twice."""
        if self._context:
            self._lib.llama_free(self._context)
        if self._model:
            self._lib.llama_model_free(self._model)
        self._context = self._model = None


def _reason() -> Any:
    return library.take_error().rstrip(".") or "it gives no reason"
