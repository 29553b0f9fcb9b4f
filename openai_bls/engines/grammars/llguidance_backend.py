"""Grammar constraints by llguidance, for one model's vocabulary.

The vocabulary is read from tokenizer.json: for each id the bytes that it adds to the text. So what a grammar spells is
reachable by any tokens that spell it, added ones such as `<tool_call>` or `</think>` included where the tokenizer does
not call them special. Special ones (`<|im_start|>`) match nothing, unless a Lark grammar spells them (`[TOOL_CALLS]`):
then they are text to it, like the tokens that spell them in parts. Tokens that end a text and ids without a token, with
which models pad their vocabulary, never match.

llguidance knows no stop tokens here. A request's own are set in the bitmask where the grammar may end and cleared
everywhere else, also if they are text.

A grammar that is not kept is compiled in a trial process first (`trials`), within a budget of CPU time and memory.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from openai_bls.core.engine_types import Grammar
from openai_bls.engines.grammars import trial_worker, vocabulary
from openai_bls.engines.grammars.cache import Owned
from openai_bls.engines.grammars.compilations import Compilations
from openai_bls.engines.grammars.constraint import LlguidanceConstraint
from openai_bls.engines.grammars.errors import GrammarError, require_size
from openai_bls.engines.grammars.matcher import Constraint, ConstraintFactory
from openai_bls.engines.grammars.trials import Trials
from openai_bls.engines.grammars.vocabulary import GrammarVocabulary, bitmask
from openai_bls.output.structured.grammars.gbnf import slashed

logger = logging.getLogger(__name__)

_MAX_THREADS = 8


def load(
    tokenizer_dir: Path, vocab_size: int, eos_token_ids: Sequence[int], *, trials: bool = True
) -> ConstraintFactory | None:
    """The factory for the tokenizer in a folder; reads nothing yet.

    Args:
        tokenizer_dir: folder with tokenizer.json.
        vocab_size: size of the model's vocabulary, which may be larger than the tokenizer's.
        eos_token_ids: ids that are never text, whatever the tokenizer says.
        trials: whether grammars are tried in another process before; False is for grammars that are known.

    Returns:
        None if the file or llguidance is missing.
    """
    if not (tokenizer_dir / "tokenizer.json").is_file():
        logger.info("no grammars: there is no %s", tokenizer_dir / "tokenizer.json")
        return None
    if importlib.util.find_spec("llguidance") is None:
        logger.info("no grammars: llguidance is not installed")
        return None
    return LlguidanceFactory(tokenizer_dir, vocab_size, tuple(eos_token_ids), trials=trials)


class LlguidanceFactory:
    """A `ConstraintFactory` by llguidance."""

    backend: Literal["llguidance"] = "llguidance"

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: tuple[int, ...], *, trials: bool = True) -> None:
        """See `load`."""
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._has_trials = trials
        self._loading = threading.Lock()
        self._vocabulary: GrammarVocabulary | None = None
        self._tokenizer: Any = None
        self._executor: Any = None
        self._compilations: Compilations | None = None

    def warm_up(self) -> None:
        """Load llguidance and the vocabulary."""
        self._load()

    def make(self, grammar: Grammar, stop_token_ids: Sequence[int], owner: str = "") -> Constraint:
        """A constraint at the beginning of `grammar`."""
        known = self._load()
        owned = Owned(owner, grammar)
        assert self._compilations is not None
        compiled = self._compilations.matcher(owned, _lark(grammar))
        is_text = known.is_text
        # Schemas are written to the end of the line. Without backslashes an escaped marker is itself again.
        spelled = re.sub(r"%json .*", "", grammar.text).replace("\\", "") if grammar.kind == "lark" else ""
        markers = [token_id for text, token_id in known.markers.items() if text in spelled]
        if markers:
            is_text = is_text | bitmask(markers, self._vocab_size)
        stop = bitmask(stop_token_ids, self._vocab_size)
        forget = partial(self._compilations.forget, owned, compiled)
        return LlguidanceConstraint(compiled.deep_copy(), is_text, stop, self._tokenizer.greedy_tokenize, forget)

    def give_up(self, grammar: Grammar, owner: str = "") -> None:
        """End the trial of a grammar that nobody waits for any more."""
        if self._compilations is not None:
            self._compilations.give_up(Owned(owner, grammar))

    def close(self) -> None:
        """End the trial processes."""
        if self._compilations is not None:
            self._compilations.close()

    def fill_bitmasks(self, constraints: Sequence[Constraint]) -> None:
        """Compute the next bitmasks of `constraints` in parallel, on llguidance's own threads."""
        waiting = [one for one in constraints if isinstance(one, LlguidanceConstraint) and one.needs_bitmask]
        if len(waiting) < 2:
            return  # computed where it is asked for
        rows = np.empty((len(waiting), vocabulary.words(self._vocab_size + 1)), np.int32)
        matchers = [(constraint.matcher, row) for row, constraint in enumerate(waiting)]
        try:
            self._executor.unsafe_compute_mask_ptr(matchers, rows.ctypes.data, rows.shape[1] * 4, len(waiting))
        except Exception:  # then each computes its own, and one that fails ends its request alone
            logger.exception("llguidance does not compute in parallel")
            return
        for constraint, row in zip(waiting, rows, strict=True):
            constraint.take(row)

    def _load(self) -> GrammarVocabulary:
        with self._loading:
            if self._vocabulary is None:
                import llguidance

                found = vocabulary.read(self._folder, self._vocab_size, self._eos_token_ids)
                tokens = found.tokens
                self._tokenizer = trial_worker.tokenizer(llguidance, tokens)
                self._executor = llguidance.LLExecutor(max(1, min(_MAX_THREADS, (os.cpu_count() or 1) // 2)))
                compiled = partial(trial_worker.compiled, llguidance, self._tokenizer)
                self._compilations = Compilations(compiled, Trials(tokens) if self._has_trials else None)
                self._vocabulary = found
            return self._vocabulary


def _lark(grammar: Grammar) -> str:
    require_size(grammar.text)
    match grammar.kind:
        case "json_schema":
            text = f"start: %json {grammar.text}"
        case "regex":
            text = f"start: {slashed(grammar.text)}"
        case "lark":
            text = grammar.text
        case _:
            raise GrammarError(f"llguidance has no {grammar.kind} grammars")
    # Without this, llguidance allows but its own choice of token where only one text fits.
    return '%llguidance {"no_forcing": true}\n' + text
