"""Prompts that an engine has and has not read: few of each key, since it reads them in the order of their coming.

However many prompts one key sends, another's waits in the engine for a few of its steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from openai_bls.pipeline.admission.ticket import Ticket

_DEFAULT_STEP_TOKENS = 8192
_STEPS = 3
"""Steps' prompts that a key may have unread: those of the step that runs, of the one that is planned meanwhile, and of
the next one, so that no step lacks prompts."""


class PromptShare:
    """Prompt tokens that the engine has from each key and has not read. Belongs to the event loop's thread.

    Args:
        step_tokens: gives the tokens of a step of the engine; 0 where that is not known.
    """

    def __init__(self, step_tokens: Callable[[], int]) -> None:
        self._step_tokens = step_tokens
        self._unread: Counter[str] = Counter()

    @property
    def keys(self) -> list[str]:
        """Names of the keys that have unread prompts."""
        return list(self._unread)

    def room(self, ticket: Ticket) -> int:
        """Number of sequences of a ticket that its key may send now; at least 1 if it has no unread prompt."""
        unread = self._unread.get(ticket.key, 0)
        most = _STEPS * (self._step_tokens() or _DEFAULT_STEP_TOKENS)
        return max(0 if unread else 1, (most - unread) // _prompt_tokens(ticket))

    def sent(self, ticket: Ticket, count: int) -> None:
        """Count `count` sequences of a ticket that the engine gets."""
        ticket.unread += count
        self._unread[ticket.key] += count * _prompt_tokens(ticket)

    def read(self, ticket: Ticket, count: int = 1) -> None:
        """Count sequences of a ticket whose prompts the engine has read, or has no more."""
        ticket.unread -= count
        self._unread[ticket.key] -= count * _prompt_tokens(ticket)
        if not self._unread[ticket.key]:
            del self._unread[ticket.key]


def _prompt_tokens(ticket: Ticket) -> int:
    """Prompt tokens of one sequence, on average."""
    return max(1, ticket.prompt_tokens // ticket.sequences)
