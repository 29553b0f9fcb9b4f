"""`SamplingParams`: the table's fields, with the checks and private parts of the real class."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tensorrt_llm import _settings
from tensorrt_llm._recorded import table

if TYPE_CHECKING:
    _SamplingParams: Any = object
else:
    _SamplingParams = table.made("SamplingParams")


class SamplingParams(_SamplingParams):  # type: ignore[misc]
    """Keyword arguments only; unknown ones are a TypeError, as of any dataclass."""

    pad_id: Any
    best_of: Any
    logprobs: Any
    prompt_logprobs: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.pad_id is None:
            self.pad_id = self.end_id
        self.best_of = self.best_of or self.n
        self._validate()
        # True is 1 here, and 0 is nothing.
        self.logprobs = self.logprobs and int(self.logprobs)
        self.prompt_logprobs = self.prompt_logprobs and int(self.prompt_logprobs)

    def _validate(self) -> None:
        if _settings.release() >= (1, 2):
            if self.top_p is not None and not 0 <= self.top_p <= 1:
                raise ValueError(f"require 0 <= top_p <= 1, got top_p={self.top_p}")
            if self.top_k is not None and self.top_k < 0:
                raise ValueError(f"require top_k >= 0, got top_k={self.top_k}")
            if self.temperature is not None and self.temperature < 0:
                raise ValueError(f"require temperature >= 0, got temperature={self.temperature}")
        if self.best_of < self.n:
            raise ValueError(f"best_of ({self.best_of}) cannot be less than n ({self.n})")
        if self.best_of > 1 and self.is_greedy and not os.environ.get("TLLM_ALLOW_N_GREEDY_DECODING"):
            raise ValueError(
                "Greedy decoding in the LLM API does not allow multiple returns. Please set to best_of=1, "
                f"got best_of={self.best_of}. Please set to best_of=1 or set an environment variable "
                "TLLM_ALLOW_N_GREEDY_DECODING=1 to allow best_of > 1 under the greedy decoding."
            )
        guide = self.guided_decoding
        if guide is not None:
            given = [guide.json, guide.regex, guide.grammar, guide.json_object, guide.structural_tag]
            if sum(map(bool, given)) > 1:
                raise ValueError(f"Only one guide can be used for a request, but got {sum(map(bool, given))}.")

    @property
    def is_greedy(self) -> bool:
        """Up to 1.1 a temperature alone does not make it sample."""
        if self.use_beam_search:
            return False
        if _settings.release() >= (1, 2):
            unset = self.temperature is None and self.top_p is None and self.top_k is None
            return unset or self.top_k == 1 or self.top_p == 0 or self.temperature == 0
        return self.top_k in (None, 1) and self.top_p in (None, 0)

    def _setup(self, tokenizer: Any) -> None:
        """What LLM does for a request without an `end_id`."""
        self.end_id = tokenizer.eos_token_id
        self.pad_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        for texts, key in ((self.bad, "_bad_word_ids"), (self.stop, "_stop_word_ids")):
            if texts is not None:
                listed = [texts] if isinstance(texts, str) else texts
                setattr(self, key, [tokenizer.encode(text) for text in listed])

    def _get_bad_words(self) -> list[list[int]]:
        words = [[token] for token in self.bad_token_ids or ()]
        if self.bad is None:
            return words
        if self._bad_word_ids is None:
            raise RuntimeError(
                f"SamplingParams.bad ({self.bad}) is not processed by tokenizer, please call the setup method."
            )
        return words + list(self._bad_word_ids)

    def _get_stop_words(self) -> list[tuple[Any, list[int]]]:
        words: list[tuple[Any, list[int]]] = [(token, [token]) for token in self.stop_token_ids or ()]
        if self.stop is None:
            return words
        ids = getattr(self, "_stop_word_ids", None)
        if ids is None:
            raise RuntimeError(
                f"SamplingParams.stop ({self.stop}) is not processed by tokenizer, please call the setup method."
            )
        return words + list(zip([self.stop] if isinstance(self.stop, str) else self.stop, ids, strict=True))
