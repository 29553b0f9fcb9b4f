"""Prompts that are part of the answer.

A long one has hundreds of thousands of log-probabilities, so it is written in parts, each in a turn of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from openai_bls.core.engine_types import PromptLogprobs, TokenDelta
from openai_bls.core.logprobs import TokenLogprob, of_prompt, row_count, rows_of
from openai_bls.output.detokenizer.factory import Detokenizer
from openai_bls.pipeline.generation.sequence import Sequence
from openai_bls.pipeline.generation.writer import SequenceOwner

TakeTurns = Callable[[Callable[[], bool]], None]
"""Calls a function in a turn of the event loop, and again in later ones as long as it returns True."""
Part = tuple[list[TokenLogprob], str]
"""Log-probabilities of some of a prompt's tokens, and their text."""
PART_COST = 4096
"""Cost of a part, at a microsecond for each log-probability: a few milliseconds."""
_TOKEN_COST = 8
"""Cost of a token, without the likeliest ones at its place."""


class Echo:
    """A prompt that is part of the answer. One for all choices of a prompt, the first of which brings its
    log-probabilities: they are the same for all, and large.

    Args:
        token_ids: tokens of the prompt.
        detokenizer: a new detokenizer, for them.
        take_turns: see `TakeTurns`.
        text: text of the prompt where that is known and no log-probabilities are wanted; else it is decoded.
        logprobs: the engine sends log-probabilities of the prompt.
    """

    def __init__(
        self,
        token_ids: list[int],
        detokenizer: Detokenizer,
        take_turns: TakeTurns,
        text: str | None = None,
        *,
        logprobs: bool = False,
    ) -> None:
        self._take_turns = take_turns
        # What waits for the log-probabilities; None if nothing needs to.
        self._waiting: list[Callable[[], bool]] | None = [] if logprobs else None
        self._logprobs: PromptLogprobs | None = None
        self.length = 0
        """Characters of what has been decoded."""
        self._token_ids = token_ids
        self._detokenizer = detokenizer
        self._text = text
        # By token; the last piece has what the detokenizer held back.
        self._pieces: list[str] = []
        self._offsets: list[int] = []

    def brings(self, logprobs: PromptLogprobs | None) -> None:
        """Take the log-probabilities of the prompt, which its first choice has brought.

        Raises:
            ValueError: there are none.
        """
        if logprobs is None:
            raise ValueError("the engine did not send the prompt's log-probabilities")
        self._logprobs = logprobs
        waiting, self._waiting = self._waiting or [], None
        for write in waiting:
            self._take_turns(write)

    def write(self, write: Callable[[], bool]) -> None:
        """Have a choice write the prompt by `write` (see `TakeTurns`), once its log-probabilities are there."""
        if self._waiting is None:
            self._take_turns(write)
        else:
            self._waiting.append(write)

    def parts(self) -> Iterator[Part]:
        """The parts of the prompt in their order.

        Raises:
            ValueError: the log-probabilities are not those of this prompt.
        """
        if self._text is not None:
            self.length = len(self._text)
            yield [], self._text
            return
        count, logprobs = len(self._token_ids), self._logprobs
        if logprobs is not None and row_count(logprobs) != count - 1:
            raise ValueError("the engine sent log-probabilities of another prompt")
        rows = None if logprobs is None else rows_of(logprobs)
        size = max(1, PART_COST // (_TOKEN_COST + (0 if logprobs is None else logprobs.top)))
        for start in range(0, count, size):
            end = min(start + size, count)
            self._decode(end)
            tokens = [] if rows is None else of_prompt(self._token_ids, rows, self._offsets, start, end)
            yield tokens, "".join(self._pieces[start:end])

    def _decode(self, end: int) -> None:
        """Decode the tokens before number `end` that no other choice has had decoded."""
        for at in range(len(self._pieces), end):
            piece = self._detokenizer.push([self._token_ids[at]])
            if at == len(self._token_ids) - 1:
                piece += self._detokenizer.finish()
            self._offsets.append(self.length)
            self._pieces.append(piece)
            self.length += len(piece)


class EchoingSequence(Sequence):
    """Sequence whose prompt is part of the answer. What the engine sends waits until the prompt is written.

    Args:
        arguments: those of `Sequence`.
        echo: the prompt.
        options: those of `Sequence`.
    """

    __slots__ = ("_echo", "_held")

    def __init__(self, *arguments: Any, echo: Echo, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._echo: Echo | None = echo
        self._held: list[TokenDelta] = []

    def on_delta(self, delta: TokenDelta) -> None:
        """Take a delta from the engine; no exception leaves this."""
        owner = self._owner
        if self._echo is not None and delta.finish_reason in ("cancelled", "error"):
            self._echo = None
        if self._echo is None or owner is None:
            super().on_delta(delta)
            return
        self._held.append(delta)
        if len(self._held) == 1:
            try:
                self._start_echo(owner, self._echo, delta)
            except Exception:
                self._fail(owner)

    def _start_echo(self, owner: SequenceOwner, echo: Echo, first: TokenDelta) -> None:
        self._begin(owner, first)
        if self.request.prompt_logprobs is not None:
            echo.brings(first.prompt_logprobs)
        echo.write(partial(self._go_on, owner, echo.parts()))

    def _go_on(self, owner: SequenceOwner, parts: Iterator[Part]) -> bool:
        """Write the next part, or what the engine has sent meanwhile; True if there is more."""
        if owner.ended or self._echo is None:
            return False
        try:
            for tokens, text in parts:
                if tokens:
                    self._writer.logprobs(self, tokens)
                if text:
                    self._writer.text(self, text)
                return True
        except Exception:
            self._fail(owner)
            return False
        self._decoded = self._sent = self._echo.length
        self._echo = None
        held, self._held = self._held, []
        for delta in held:
            # One of them may have ended it, at a stop string for example.
            if self.finish_reason is None and not owner.ended:
                self.on_delta(delta)
        return False
