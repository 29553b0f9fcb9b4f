"""Official output tensors of `tensorrt_llm_bls`: the events of one request's sequences as its responses."""

from __future__ import annotations

from typing import Any

import numpy as np

from openai_bls.core.errors import ApiError
from openai_bls.core.logprobs import TokenLogprob
from openai_bls.core.usage import FinishReason, Usage
from openai_bls.pipeline.generation.sequence import Sequence
from openai_bls.pipeline.generation.sequence_state import SequenceState
from openai_bls.triton_models.endpoint.response_sender import ResponseSender
from openai_bls.triton_models.tensorrt_llm_bls.requests import TextRequest

Outputs = dict[str, np.ndarray[Any, Any]]

NOTHING: Outputs = {"text_output": np.array([b""], dtype=np.object_)}
"""Answer to a stop request: `generate` wants one."""


class TensorEncoder:
    """Encoder of text as output tensors.

    Args:
        rows: rows of the request.
        return_sequences: sequences of each.
    """

    def __init__(self, rows: int, return_sequences: int) -> None:
        self._indices = [
            (np.array([[row]], dtype=np.int32), np.array([[index]], dtype=np.int32))
            for row in range(rows)
            for index in range(return_sequences)
        ]

    def text(self, index: int, text: str, usage: Usage | None = None) -> Outputs:
        """A response with a piece of text of sequence `index`; flat, as clients go through it item by item."""
        row, sequence = self._indices[index]
        return {
            "text_output": np.array([text.encode()], dtype=np.object_),
            "batch_index": row,
            "sequence_index": sequence,
        }


class TensorWriter:
    """Writer of output tensors, see `pipeline.generation.writer.Writer`.

    Streamed: a response for each piece of text. Else one for each sequence, when it ends. With log-probabilities those
    of all tokens so far are in each response; what else was asked for is in the last one of each sequence.

    Args:
        request: request of the client.
        sender: sender of the request's responses.
    """

    def __init__(self, request: TextRequest, sender: ResponseSender[Outputs]) -> None:
        official = request.official
        self._request = request
        self._sender = sender
        self._per_row = official.return_sequences
        count = len(official.prompts) * self._per_row
        self._encoder = TensorEncoder(len(official.prompts), self._per_row)
        self._texts: list[list[str]] = [[] for _ in range(count)]
        self._log_probs: list[list[float]] = [[] for _ in range(count)]
        # Sequences whose client lacks something: no response at all yet, or log-probabilities.
        self._unsent = set(range(count))
        sender.begin(self._encoder)

    def logprobs(self, sequence: SequenceState, tokens: list[TokenLogprob]) -> None:
        """Keep the log-probabilities; those of the prompt are never asked for."""
        self._log_probs[sequence.index] += [token.logprob for token in tokens if token.logprob is not None]
        self._unsent.add(sequence.index)

    def text(self, sequence: SequenceState, text: str) -> None:
        """Send a piece of text if the answer is streamed."""
        index = sequence.index
        if not self._request.official.streaming:
            self._texts[index].append(text)
            return
        self._unsent.discard(index)
        if self._request.return_log_probs:
            self._sender.write(self._encoder.text(index, text) | self._sums(index))
        else:
            self._sender.text(index, text, None)

    def finished(self, sequence: SequenceState, reason: FinishReason) -> None:
        """Send the whole text, or what a stream still lacks."""
        self._finish(sequence, reason)

    def stopped(self, sequences: list[Sequence]) -> None:
        """End the request where it is: whole answers are sent as far as they have come."""
        for sequence in sequences:
            if sequence.finish_reason is None:
                self._finish(sequence, "cancelled")
        self._sender.end()

    def _finish(self, sequence: SequenceState, reason: str) -> None:
        index = sequence.index
        if index in self._unsent or self._request.extras:
            text = "".join(self._texts[index])
            self._sender.write(self._encoder.text(index, text) | self._sums(index) | self._extras(sequence, reason))

    def done(self, usage: Usage) -> None:
        """End the request."""
        self._sender.end()

    def failed(self, error: ApiError) -> None:
        """End the request with an error."""
        self._sender.fail(error)

    def reasoning(self, sequence: SequenceState, text: str) -> None:
        """Never called: the text is not parsed."""

    def tool_call(self, sequence: SequenceState, index: int, call_id: str, name: str) -> None:
        """Never called: the text is not parsed."""

    def tool_arguments(self, sequence: SequenceState, index: int, fragment: str) -> None:
        """Never called: the text is not parsed."""

    def _sums(self, index: int) -> Outputs:
        """`cum_log_probs` [batch 1, beam 1], the sum, and `output_log_probs` [batch 1, beam 1, length]."""
        if not self._request.return_log_probs:
            return {}
        values = np.array(self._log_probs[index], dtype=np.float32).reshape(1, 1, -1)
        return {"cum_log_probs": np.array([[self._total(index)]], dtype=np.float32), "output_log_probs": values}

    def _total(self, index: int) -> float:
        return sum(self._log_probs[index])

    def _extras(self, sequence: SequenceState, reason: str) -> Outputs:
        asked = self._request.extras
        if not asked:
            return {}
        counts = {
            "num_input_tokens": len(sequence.request.prompt_token_ids),
            "num_output_tokens": sequence.completion_tokens,
        }
        texts = {"finish_reason": reason, "stop_reason": sequence.matched_stop or ""}
        found: Outputs = {name: np.array([[value]], dtype=np.int32) for name, value in counts.items() if name in asked}
        found |= {name: np.array([text.encode()], dtype=np.object_) for name, text in texts.items() if name in asked}
        if "cumulative_logprob" in asked:
            found["cumulative_logprob"] = np.array([self._total(sequence.index)], dtype=np.float32)
        return found
