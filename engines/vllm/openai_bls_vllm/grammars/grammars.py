"""Grammars of requests for vLLM: what a request's `SamplingParams` and `StructuredOutputsParams` have with one."""

from __future__ import annotations

import logging
from collections.abc import Collection
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from openai_bls.core.engine_types import GenerationRequest
from openai_bls.core.keys.turns import FairExecutor
from openai_bls.engines.grammars.cache import Owned
from openai_bls.engines.grammars.errors import GrammarError
from openai_bls.engines.grammars.waiters import Waiters
from openai_bls_vllm.grammars import structured_outputs
from openai_bls_vllm.grammars.grammar_progress import GrammarProgress, Progress, marker_token_ids

logger = logging.getLogger(__name__)


class Constrained(NamedTuple):
    """A grammar in vLLM's terms."""

    structured_outputs: dict[str, Any]
    """Fields of `StructuredOutputsParams`."""
    params: dict[str, Any]
    """Fields of `SamplingParams` that replace the request's."""
    progress: Progress
    """The sequence at the beginning of its grammar."""


class Grammars:
    """Grammars of a loaded model. Reads the tokenizer's vocabulary, which takes seconds.

    Args:
        folder: folder of the tokenizer that vLLM's grammars read.
        vocab_size: size of the model's vocabulary.
        eos_token_ids: ids of the model's end tokens.
    """

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        self.marker_token_ids = marker_token_ids(folder, eos_token_ids)
        self._vocab_size = vocab_size
        self._progress = GrammarProgress(folder, vocab_size, eos_token_ids)
        self._executor = FairExecutor(1, "vllm-grammars")
        self._waiters = Waiters()

    @classmethod
    def of(cls, folder: Path, vocab_size: int, eos_token_ids: Collection[int]) -> Grammars | None:
        """Grammars with the installed llguidance; None, with a line in the log, where they are not known to be exact.

        Args:
            folder: folder with tokenizer.json.
            vocab_size: size of the model's vocabulary.
            eos_token_ids: ids of the model's end tokens.
        """
        problem = structured_outputs.why_not(structured_outputs.installed_llguidance())
        if problem:
            logger.warning("%s", problem)
            return None
        try:
            return cls(folder, vocab_size, eos_token_ids)
        except Exception:
            logger.warning("structured output is refused: the tokenizer in %s cannot be read", folder, exc_info=True)
            return None

    def start(self, key: str, request: GenerationRequest) -> Future[Constrained]:
        """Have `constrain` done on another thread, in turn by API key.

        Args:
            key: the request's id, for `cancel`.
            request: a request with a grammar.
        """
        assert request.grammar is not None
        self._waiters.add(key, Owned(request.owner, request.grammar))
        return self._executor.submit(request.owner, partial(self._constrain, key, request))

    def cancel(self, key: str) -> None:
        """End what compiles for a request alone. One that does not wait is passed over."""
        owned = self._waiters.remove(key)
        if owned is not None:
            self._progress.give_up(owned.grammar, owned.owner)

    def close(self) -> None:
        """Start no more, and end the trials."""
        self._executor.close()
        self._progress.close()

    def _constrain(self, key: str, request: GenerationRequest) -> Constrained:
        try:
            return self.constrain(request)
        finally:
            self._waiters.remove(key)

    def constrain(self, request: GenerationRequest) -> Constrained:
        """The grammar of a request that has one. Takes milliseconds to seconds; from any thread.

        Raises:
            GrammarError: vLLM cannot follow it as documented; one sentence.
        """
        assert request.grammar is not None
        eos = self._progress.eos_token_id
        others = [token for token in request.stop_token_ids if token != eos]
        text = self._progress.text_token_ids(others)
        if text:
            raise GrammarError(
                f"stop_token_ids has {min(text)}, which is text in this model: together with structured output the "
                "engine vllm takes special tokens only"
            )
        ends = structured_outputs.end_tokens(request.stop_token_ids, eos, self._vocab_size)
        params = structured_outputs.sampling(request, eos)
        progress = self._progress.start(request.grammar, request.owner, request.min_tokens)
        if request.min_tokens and progress.is_complete():
            # It allows the empty text alone.
            params["min_tokens"] = 0
        return Constrained({"grammar": structured_outputs.lark(request.grammar, ends)}, params, progress)
