"""Constraint of one sequence by llguidance."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from openai_bls.engines.grammars.errors import BEYOND_LIMITS, GrammarError, message
from openai_bls.engines.grammars.matcher import Bitmask

logger = logging.getLogger(__name__)


class LlguidanceConstraint:
    """A `Constraint`: the next bitmask is computed once, by whoever asks first or by `fill_bitmasks`."""

    def __init__(
        self,
        matcher: Any,
        is_text: Bitmask,
        stop: Bitmask,
        spell: Callable[[str], list[int]] = lambda _: [],
        on_limits: Callable[[], None] = lambda: None,
    ) -> None:
        """Start where `matcher` is.

        Args:
            matcher: an `LLMatcher`.
            is_text: tokens that are text to its grammar.
            stop: stop tokens of the request.
            spell: the longest tokens that spell a text.
            on_limits: called when the matcher has met llguidance's limits: so have all that share its lexer.
        """
        self.matcher = matcher
        self._spell = spell
        self._on_limits = on_limits
        self._text = is_text & ~stop
        self._stop = stop
        self._next: Bitmask | None = None
        self._error: GrammarError | None = None
        self._may_end = False
        self._only_end = False

    def fill(self, mask: Bitmask) -> None:
        """Write the tokens that may come next.

        Raises:
            GrammarError: none may, though the grammar is not complete, or it exceeds llguidance's limits.
        """
        mask[:] = self._computed()
        if self._may_end:
            mask |= self._stop
        elif self._only_end:
            raise GrammarError("no token of this model's vocabulary fits where the grammar has got to")

    def accept(self, token_id: int) -> bool:
        """Advance by a sampled token."""
        if not 0 <= token_id < self._text.size * 32 or not self._text[token_id // 32] >> token_id % 32 & 1:
            return False
        allowed, self._next = self._next, None
        if self.matcher.consume_token(token_id):
            return True
        if allowed is not None and allowed[token_id // 32] >> token_id % 32 & 1:
            # It would have fitted: the matcher has met a limit on its way there.
            self._error = self._beyond_limits()
            raise self._error
        return False

    def look_ahead(self, token_ids: Sequence[int]) -> list[Bitmask]:
        """Bitmasks after each of `token_ids`, as far as they are allowed and something may follow them."""
        masks: list[Bitmask] = []
        try:
            ahead = LlguidanceConstraint(self.matcher.deep_copy(), self._text, self._stop, on_limits=self._on_limits)
            valid = self.matcher.validate_tokens(list(token_ids))
            for token_id in token_ids[:valid]:
                if not ahead.accept(token_id) or ahead.ended:
                    break
                mask = np.empty_like(self._text)
                ahead.fill(mask)
                masks.append(mask)
        except Exception as error:  # comes again, where it counts, if the token is sampled
            logger.debug("a draft leads to where the grammar fails: %s", error)
        return masks

    def forced(self) -> list[int]:
        """Tokens of the only text that may follow."""
        try:
            return self._spell(self.matcher.compute_ff_bytes().decode(errors="ignore"))
        except Exception as error:  # comes again, where it counts
            logger.debug("a grammar forces nothing: %s", error)
            return []

    @property
    def ended(self) -> bool:
        """True once the grammar is complete and only a stop token may follow; raises as `fill` does."""
        self._computed()
        return self._may_end and self._only_end

    @property
    def needs_bitmask(self) -> bool:
        """True while the next bitmask is not computed."""
        return self._next is None and self._error is None

    def take(self, row: Bitmask) -> None:
        """Note the next bitmask as llguidance has computed it; keeps `row`."""
        matcher = self.matcher
        if matcher.is_error():
            self._error = self._beyond_limits()
            return
        # llguidance's vocabulary is larger by its end token, which may take one word more.
        allowed = row[: self._text.size]
        if matcher.is_stopped():
            allowed[:] = 0
        else:
            allowed &= self._text
        self._next = allowed
        self._may_end = bool(matcher.is_accepting())
        self._only_end = not allowed.any()

    def _beyond_limits(self) -> GrammarError:
        self._on_limits()
        return GrammarError(f"{BEYOND_LIMITS}: {message(self.matcher.get_error())}")

    def _computed(self) -> Bitmask:
        if self.needs_bitmask:
            self.take(np.frombuffer(bytearray(self.matcher.compute_bitmask()), dtype=np.int32))
        if self._error is not None:
            raise self._error
        assert self._next is not None
        return self._next
