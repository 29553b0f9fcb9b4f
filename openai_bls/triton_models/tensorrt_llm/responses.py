"""Official output tensors of `tensorrt_llm`: the token deltas of one Triton request as its responses.

Source: tensorrtllm_backend's `all_models/inflight_batcher_llm/tensorrt_llm`. Kept: names, shapes, decoupled streaming
with only the new tokens in each response but the log-probabilities of all tokens so far, `exclude_input_in_output`,
no log-probabilities for the prompt, zeros for logits that were not asked for. Different: log-probabilities are the
model's own, before penalties and temperature, and the token that ended the sequence is not in the outputs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from openai_bls.core.engine_types import GenerationRequest, TokenDelta
from openai_bls.core.errors import ApiError, engine_failure
from openai_bls.triton_models.tensorrt_llm.requests import OfficialRequest
from openai_bls.triton_models.tensors.models import DECODE_CONTEXT_LENGTH, LOGITS

Outputs = dict[str, np.ndarray[Any, Any]]

_DUMMIES: Outputs = {tensor.name: np.zeros([1] * (1 + len(tensor.dims)), dtype=np.float32) for tensor in LOGITS}


class Responder:
    """Turns the token deltas of one Triton request into responses.

    Streaming: one response per step and sequence, `output_ids` with the new tokens only. Else one response per
    sequence, when it ends. With one row and one sequence that is exactly one response, as Triton's `generate` wants it.

    Args:
        send: sends output tensors; the second argument is true for the last response of the request.
        fail: ends the request with an error.
    """

    def __init__(
        self,
        request: OfficialRequest,
        send: Callable[[Outputs, bool], None],
        fail: Callable[[ApiError], None],
    ) -> None:
        self.request = request
        self._send = send
        self._fail = fail
        self._sequences = [
            Sequence(self, row, index, prompt)
            for row, prompt in enumerate(request.prompts)
            for index in range(request.return_sequences)
        ]
        self._open = len(request.prompts) * request.return_sequences
        # A stop comes on another thread than deltas.
        self._lock = threading.Lock()
        self.request_ids: list[int] = []
        """Ids of the engine's requests behind this one."""

    @property
    def ended(self) -> bool:
        """True once the last response is sent."""
        return self._open == 0

    def sequences(self) -> list[Sequence]:
        """Every sequence of every row."""
        return self._sequences

    def close(self) -> None:
        """The client has gone: send nothing more."""
        with self._lock:
            self._open = 0

    def stop(self) -> None:
        """Send whole answers as far as they have come; of a stream nothing more."""
        if self.request.streaming:
            self.close()
        else:
            for sequence in self._sequences:
                sequence.stop()

    def deliver(self, sequence: Sequence, tokens: list[int], context: list[int], final: bool) -> None:
        """Send one response."""
        with self._lock:
            if not self.ended and not sequence.ended:
                sequence.ended = final
                self._deliver(sequence, tokens, context, final)

    def _deliver(self, sequence: Sequence, tokens: list[int], context: list[int], final: bool) -> None:
        self._open -= final
        padded = [-1] * (DECODE_CONTEXT_LENGTH - len(context)) + context
        outputs = {
            "output_ids": np.array([[tokens]], dtype=np.int32).reshape(1, 1, -1),
            "sequence_length": np.array([[len(tokens)]], dtype=np.int32),
            "batch_index": np.array([[sequence.row]], dtype=np.int32),
            "sequence_index": np.array([[sequence.index]], dtype=np.int32),
            "decode_context": np.array([padded], dtype=np.int32),
            "decode_final": np.array([[final]], dtype=np.bool_),
            **sequence.log_probs(),
        }
        if not self.request.streaming:
            outputs |= {name: array for name, array in _DUMMIES.items() if name in self.request.dummies}
        self._send(outputs, self.ended)

    def error(self, error: ApiError) -> None:
        """End the whole request with an error."""
        with self._lock:
            ended, self._open = self.ended, 0
        if not ended:
            self._fail(error)


class Sequence:
    """One sequence of a `Responder`: maker of its engine request, and sink of its deltas."""

    def __init__(self, responder: Responder, row: int, index: int, prompt: list[int]) -> None:
        self.row = row
        self.index = index
        self.ended = False
        """True once the sequence's last response is sent."""
        self._responder = responder
        self._prompt = prompt
        self._tokens: list[int] = []
        self._log_probs: list[float] = []
        self._total = 0.0

    def request(self, request_id: int) -> GenerationRequest:
        """The engine request of this sequence."""
        return self._responder.request.engine_request(request_id, self.row, self.index)

    def __call__(self, delta: TokenDelta) -> None:
        """Take the delta of an engine step."""
        responder, request = self._responder, self._responder.request
        failure = engine_failure(delta, cancelled="The request was cancelled.")
        if failure is not None:
            responder.error(failure)
            return
        if delta.logprobs is not None:
            self._log_probs += delta.logprobs.token_logprobs
            self._total += sum(delta.logprobs.token_logprobs)
        final = delta.finish_reason is not None
        if request.streaming:
            context = self._tokens[-DECODE_CONTEXT_LENGTH:]
            self._tokens = [*context, *delta.token_ids]
            responder.deliver(self, delta.token_ids, context, final)
            return
        self._tokens += delta.token_ids
        if final:
            self.stop()

    def stop(self) -> None:
        """Send the whole answer as far as it has come."""
        prompt = [] if self._responder.request.exclude_input else self._prompt
        self._responder.deliver(self, [*prompt, *self._tokens], [], final=True)

    def log_probs(self) -> Outputs:
        """`cum_log_probs` [batch 1, beam 1], the sum, and `output_log_probs` [batch 1, beam 1, length], of all tokens
        so far; nothing if the request did not ask for them."""
        if self._responder.request.template.logprobs is None:
            return {}
        return {
            "cum_log_probs": np.array([[self._total]], dtype=np.float32),
            "output_log_probs": np.array([[self._log_probs]], dtype=np.float32).reshape(1, 1, -1),
        }
