"""Progress of sequences in their grammars, which the engine follows in parallel with vLLM.

vLLM's core compiles a grammar and masks with it, and is not asked what came of it. Here the same library, with the same
vocabulary, says it: a grammar that does not compile is refused before vLLM sees it; a sequence ends with the token
after which nothing may follow, before vLLM samples an end token; and an output that stops before its grammar does (as
vLLM's does when llguidance gives up: it then allows the end token) is an error and no answer. A token costs about a
microsecond.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from openai_bls.core.engine_types import Grammar
from openai_bls.engines.grammars import trial_worker, vocabulary
from openai_bls.engines.grammars.cache import Owned
from openai_bls.engines.grammars.compilations import Compilations
from openai_bls.engines.grammars.errors import BEYOND_LIMITS, GrammarError, message, require_size
from openai_bls.engines.grammars.trials import Trials
from openai_bls_vllm.grammars import structured_outputs

_FORBIDDEN = "the engine sampled a token that the grammar forbids"
_MAX_MARKERS = 1_000
_UNUSED = re.compile(r"reserved|unused|extra_id|placeholder|dummy", re.IGNORECASE)


class Progress:
    """Position of one sequence in its grammar. Used by one thread at a time."""

    def __init__(self, matcher: Any, on_limits: Callable[[], None] = lambda: None, min_tokens: int = 0) -> None:
        """Begin at the start of a grammar.

        Args:
            matcher: an `LLMatcher`.
            on_limits: called when the matcher has met llguidance's limits: so have all that share its lexer.
            min_tokens: tokens before which vLLM ends no sequence, even where its grammar is complete.
        """
        self._matcher = matcher
        self._on_limits = on_limits
        self._min_tokens = min_tokens
        self._count = 0

    def advance(self, token_ids: Sequence[int]) -> int | None:
        """Advance by sampled tokens, none of them a stop token.

        Returns:
            How many of the tokens complete the grammar, so that nothing may follow; None while something may.

        Raises:
            GrammarError: the grammar forbids one of them, or llguidance cannot follow it any further.
        """
        matcher = self._matcher
        for count, token_id in enumerate(token_ids, 1):
            if matcher.is_stopped() or not matcher.consume_token(token_id):
                raise GrammarError(self._failure(_FORBIDDEN))
            self._count += 1
            if self.is_complete():
                return count
        return None

    def is_complete(self) -> bool:
        """True where nothing but a stop token may follow, unless vLLM itself would end the sequence there."""
        matcher = self._matcher
        if matcher.is_stopped() or self._count >= self._min_tokens:
            return bool(matcher.is_stopped() and matcher.is_accepting())
        if not matcher.is_accepting():
            return False
        # The mask has the end token here. At llguidance's limits it has no other, either.
        allowed = int.from_bytes(matcher.compute_bitmask(), "little").bit_count()
        return allowed == 1 and not matcher.is_error()

    def require_end(self) -> None:
        """Check that the output may end here, with a stop token.

        Raises:
            GrammarError: the grammar goes on.
        """
        if not self._matcher.is_accepting():
            raise GrammarError(self._failure("the engine ended the output before its grammar did"))

    def _failure(self, otherwise: str) -> str:
        if not self._matcher.is_error():
            # The limits are noticed where a mask is asked for.
            self._matcher.compute_bitmask()
        said = message(self._matcher.get_error()) if self._matcher.is_error() else ""
        if not said or "doesn't satisfy the grammar" in said:
            return otherwise
        self._on_limits()
        return f"{BEYOND_LIMITS}: {said}"


class GrammarProgress:
    """Grammars of one model's vocabulary, as vLLM's core compiles them; reading it takes seconds. Thread-safe.

    Args:
        folder: folder of the tokenizer that vLLM is given.
        vocab_size: size of the model's vocabulary.
        eos_token_ids: ids of the model's end tokens.
    """

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: Collection[int] = ()) -> None:
        import llguidance
        from llguidance import hf
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        self.eos_token_id: int | None = tokenizer.eos_token_id
        """The end token that vLLM's masks have."""
        self._vocab_size = vocab_size
        # As vLLM's GuidanceBackend does.
        self._tokenizer: Any = hf.from_tokenizer(tokenizer, max(vocab_size, len(tokenizer)))
        # What a grammar costs goes by the texts of the tokens, however their library has them.
        tokens = vocabulary.read(folder, vocab_size, tuple(eos_token_ids)).tokens
        self._compilations = Compilations(partial(trial_worker.compiled, llguidance, self._tokenizer), Trials(tokens))

    def text_token_ids(self, token_ids: Collection[int]) -> list[int]:
        """Those of some tokens that are text to grammars."""
        return [one for one in token_ids if 0 <= one < self._vocab_size and not self._tokenizer.is_special_token(one)]

    def start(self, grammar: Grammar, owner: str = "", min_tokens: int = 0) -> Progress:
        """The beginning of a grammar. Takes milliseconds to seconds.

        Args:
            grammar: the grammar.
            owner: name of the API key that it is for.
            min_tokens: the request's, see `Progress`.

        Raises:
            GrammarError: it does not compile, or not within the budget; the request's fault.
            GivenUpError: it was given up.
        """
        require_size(grammar.text)
        owned = Owned(owner, grammar)
        matcher = self._compilations.matcher(owned, structured_outputs.lark(grammar))
        return Progress(matcher.deep_copy(), partial(self._compilations.forget, owned, matcher), min_tokens)

    def give_up(self, grammar: Grammar, owner: str) -> None:
        """End the trial of a grammar that nobody waits for any more."""
        self._compilations.give_up(Owned(owner, grammar))

    def close(self) -> None:
        """End the trial processes."""
        self._compilations.close()


def marker_token_ids(folder: Path, eos_token_ids: Collection[int]) -> dict[str, int]:
    """`EngineInfo.marker_token_ids` of a tokenizer: its added tokens that llguidance takes for no text.

    Args:
        folder: folder with tokenizer.json.
        eos_token_ids: ids of end tokens, which are never part of an output.
    """
    added = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")).get("added_tokens") or ()
    found = {
        token["content"]: token["id"]
        for token in added
        if (token["special"] or (token["content"].startswith("<") and token["content"].endswith(">")))
        and token["id"] not in eos_token_ids
        and not _UNUSED.search(token["content"])
    }
    return found if len(found) <= _MAX_MARKERS else {}
