"""Prompts that are part of the answer."""

from __future__ import annotations

from openai_bls.core.engine_types import Logprobs, TokenDelta
from openai_bls.core.logprobs import TokenLogprob, of_prompt
from openai_bls.output.detokenizer.factory import Detokenizer
from openai_bls.pipeline.generation.sequence_state import SequenceState
from openai_bls.pipeline.generation.writer import Writer


class Echo:
    """A prompt that is part of the answer. One for all choices of a prompt.

    Args:
        text: the prompt.
        offsets: number of characters before each of the prompt's tokens, for log-probabilities.
    """

    def __init__(self, text: str, offsets: list[int] | None = None) -> None:
        self.text = text
        self._offsets = offsets or []

    @classmethod
    def decoded(cls, token_ids: list[int], detokenizer: Detokenizer) -> Echo:
        """The text of a prompt's tokens, by a new detokenizer."""
        pieces: list[str] = []
        offsets: list[int] = []
        length = 0
        for token_id in token_ids:
            offsets.append(length)
            pieces.append(detokenizer.push([token_id]))
            length += len(pieces[-1])
        return cls("".join(pieces) + detokenizer.finish(), offsets)

    def logprobs(self, token_ids: list[int], logprobs: Logprobs) -> list[TokenLogprob]:
        """Log-probabilities of the prompt's tokens."""
        return of_prompt(token_ids, logprobs, self._offsets)

    def write(self, sequence: SequenceState, writer: Writer, delta: TokenDelta) -> None:
        """Answer the prompt, with the log-probabilities that came with the sequence's first delta."""
        request = sequence.request
        if request.prompt_logprobs is not None:
            if delta.prompt_logprobs is None:
                raise ValueError("the engine did not send the prompt's log-probabilities")
            writer.logprobs(sequence, self.logprobs(request.prompt_token_ids, delta.prompt_logprobs))
        if self.text:
            writer.text(sequence, self.text)
