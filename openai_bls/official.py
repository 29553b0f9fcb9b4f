"""The official `tensorrt_llm` tensor contract: one Triton request in, responses of token ids out.

Source: tensorrtllm_backend's `all_models/inflight_batcher_llm/tensorrt_llm`. Kept: names, shapes, decoupled streaming
with only the new tokens in each response, `exclude_input_in_output`, stop requests. Different, and said so: what this
engine cannot do is refused by name instead of ignored, and a temperature without top_k or top_p is honoured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from openai_bls import word_lists
from openai_bls.errors import ApiError, InvalidRequestError, engine_failure
from openai_bls.messages import EngineInfo, GenerationRequest, SamplingParams, TokenDelta
from openai_bls.tensors import DECODE_CONTEXT_LENGTH

Arrays = Mapping[str, np.ndarray[Any, Any]]

# Inputs that are declared so that official clients may send them, and the values at which they change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "beam_width": (0, 1),
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "min_tokens": (0,),
    "beam_search_diversity_rate": (0.0,),
    "runtime_top_p_min": (0.0,),
    "runtime_top_p_decay": (0.0, 1.0),
    "return_log_probs": (False,),
    "return_context_logits": (False,),
    "return_generation_logits": (False,),
    "return_perf_metrics": (False,),
}
# Of no effect without beam search or top_p_decay, whatever they hold.
_WITHOUT_EFFECT = {"len_penalty", "early_stopping", "runtime_top_p_reset_ids"}
_NEVER = {"lora_task_id", "guided_decoding_guide_type", "guided_decoding_guide"}


class OfficialRequest(msgspec.Struct, frozen=True):
    """One Triton request of the contract."""

    prompts: list[list[int]]
    """One for each row of the batch."""
    template: GenerationRequest
    """Everything but the id and the prompt."""
    return_sequences: int
    streaming: bool
    exclude_input: bool
    pad_id: int


def is_stop(arrays: Arrays) -> bool:
    """Whether this is a stop request: it ends the live request of the same Triton request id."""
    return "stop" in arrays and bool(arrays["stop"].reshape(-1)[0])


def parse(arrays: Arrays, info: EngineInfo, exclude_input_default: bool) -> OfficialRequest:
    """The request that the input tensors hold.

    Raises:
        InvalidRequestError: a missing or bad tensor, or one that asks for what this engine does not do.
    """
    _refuse_unsupported(arrays)
    end_id = _scalar(arrays, "end_id", None)
    template = GenerationRequest(
        request_id=0,
        prompt_token_ids=[],
        max_tokens=_required(arrays, "request_output_len"),
        sampling=_sampling(arrays),
        stop_token_ids=_stop_token_ids(end_id, info),
        stop_words=tuple(_words(arrays, "stop_words_list")),
        bad_words=tuple(_words(arrays, "bad_words_list")),
    )
    pad_id = _scalar(arrays, "pad_id", None)
    return_sequences = _scalar(arrays, "num_return_sequences", 1)
    if not 1 <= return_sequences <= 128:
        raise InvalidRequestError("'num_return_sequences' must be between 1 and 128.", param="num_return_sequences")
    return OfficialRequest(
        prompts=_prompts(arrays),
        template=template,
        return_sequences=return_sequences,
        streaming=_scalar(arrays, "streaming", False),
        exclude_input=_scalar(arrays, "exclude_input_in_output", exclude_input_default),
        pad_id=-1 if pad_id is None else pad_id,
    )


class Responder:
    """Turns the token deltas of one Triton request into responses.

    Streaming: a response a step and sequence, `output_ids` with the new tokens only. Else one response a sequence, when
    it ends. With one row and one sequence that is exactly one response, as Triton's `generate` wants it.

    Args:
        send: sends output tensors; the second argument is true for the last response of the request.
        fail: ends the request with an error.
    """

    def __init__(
        self,
        request: OfficialRequest,
        send: Callable[[dict[str, np.ndarray[Any, Any]], bool], None],
        fail: Callable[[ApiError], None],
    ) -> None:
        self.request = request
        self._send = send
        self._fail = fail
        self._open = len(request.prompts) * request.return_sequences
        self.request_ids: list[int] = []
        """Of the engine's requests behind this one."""

    @property
    def ended(self) -> bool:
        """Whether the last response has gone out."""
        return self._open == 0

    def sequences(self) -> list[tuple[Callable[[int], GenerationRequest], Sequence]]:
        """What to submit: for each sequence how to make its engine request, and where its deltas go."""
        result: list[tuple[Callable[[int], GenerationRequest], Sequence]] = []
        for row, prompt in enumerate(self.request.prompts):
            for index in range(self.request.return_sequences):
                sequence = Sequence(self, row, index, prompt)
                result.append((sequence.request, sequence))
        return result

    def close(self) -> None:
        """The client has gone, or the request has been stopped: send nothing more."""
        self._open = 0

    def deliver(self, sequence: Sequence, tokens: list[int], context: list[int], final: bool) -> None:
        """Send one response."""
        if self.ended:
            return
        self._open -= final
        padded = [-1] * (DECODE_CONTEXT_LENGTH - len(context)) + context
        outputs = {
            "output_ids": np.array([[tokens]], dtype=np.int32).reshape(1, 1, -1),
            "sequence_length": np.array([[len(tokens)]], dtype=np.int32),
            "batch_index": np.array([[sequence.row]], dtype=np.int32),
            "sequence_index": np.array([[sequence.index]], dtype=np.int32),
            "decode_context": np.array([padded], dtype=np.int32),
            "decode_final": np.array([[final]], dtype=np.bool_),
        }
        self._send(outputs, self.ended)

    def error(self, error: ApiError) -> None:
        """End the whole request with an error."""
        if not self.ended:
            self._open = 0
            self._fail(error)


class Sequence:
    """One sequence of a `Responder`; called with its deltas."""

    def __init__(self, responder: Responder, row: int, index: int, prompt: list[int]) -> None:
        self.row = row
        self.index = index
        self._responder = responder
        self._prompt = prompt
        self._tokens: list[int] = []

    def request(self, request_id: int) -> GenerationRequest:
        """The engine request of this sequence."""
        template = self._responder.request.template
        sampling = template.sampling
        if sampling.seed is not None:
            seed = (sampling.seed + self.index) % 2**64
            sampling = msgspec.structs.replace(sampling, seed=seed)
        return msgspec.structs.replace(
            template, request_id=request_id, prompt_token_ids=self._prompt, sampling=sampling
        )

    def __call__(self, delta: TokenDelta) -> None:
        """Take what an engine step brought."""
        responder, request = self._responder, self._responder.request
        failure = engine_failure(delta, cancelled="The request was cancelled.")
        if failure is not None:
            responder.error(failure)
            return
        final = delta.finish_reason is not None
        if request.streaming:
            context = self._tokens[-DECODE_CONTEXT_LENGTH:]
            self._tokens = [*context, *delta.token_ids]
            responder.deliver(self, delta.token_ids, context, final)
            return
        self._tokens += delta.token_ids
        if final:
            prompt = [] if request.exclude_input else self._prompt
            responder.deliver(self, [*prompt, *self._tokens], [], final=True)


def _refuse_unsupported(arrays: Arrays) -> None:
    for name, neutral in _NEUTRAL.items():
        if name in arrays:
            value = arrays[name].reshape(-1)[:1].tolist()
            if value and value[0] not in neutral:
                allowed = " or ".join(str(v) for v in neutral)
                raise InvalidRequestError(
                    f"'{name}' is not supported by this engine; it may be left out, or be {allowed}.",
                    param=name,
                )
    for name in sorted(_NEVER.intersection(arrays)):
        raise InvalidRequestError(f"'{name}' is not supported by this engine.", param=name)
    if "embedding_bias" in arrays and np.any(arrays["embedding_bias"]):
        raise InvalidRequestError("'embedding_bias' is not supported by this engine.", param="embedding_bias")


def _stop_token_ids(end_id: int | None, info: EngineInfo) -> tuple[int, ...]:
    """The model's own end tokens if none or one of them is named; -1 is the official way to say "none at all"."""
    if end_id is None or end_id in info.eos_token_ids:
        return info.eos_token_ids
    return (end_id,) if end_id >= 0 else ()


def _sampling(arrays: Arrays) -> SamplingParams:
    top_k = _scalar(arrays, "runtime_top_k", None)
    top_p = _scalar(arrays, "runtime_top_p", None)
    temperature = _scalar(arrays, "temperature", None)
    seed = _scalar(arrays, "seed", _scalar(arrays, "random_seed", None))
    # The contract's default is greedy: top_k 1.
    if top_k is None and top_p is None and temperature is None:
        return SamplingParams(temperature=0.0, seed=seed)
    if temperature is not None and temperature < 0:
        raise InvalidRequestError("'temperature' must not be negative.", param="temperature")
    if top_p is not None and not 0 <= top_p <= 1:
        raise InvalidRequestError("'runtime_top_p' must be between 0 and 1.", param="runtime_top_p")
    if top_k is not None and top_k < 0:
        raise InvalidRequestError("'runtime_top_k' must not be negative.", param="runtime_top_k")
    return SamplingParams(
        temperature=1.0 if temperature is None else temperature,
        # The official sampler takes a top_p of 0 for "off".
        top_p=top_p or 1.0,
        top_k=top_k or 0,
        seed=seed,
    )


def _prompts(arrays: Arrays) -> list[list[int]]:
    if "input_ids" not in arrays:
        raise InvalidRequestError("'input_ids' is missing.", param="input_ids")
    rows = arrays["input_ids"]
    if rows.ndim != 2:
        raise InvalidRequestError("'input_ids' must have shape [batch, length].", param="input_ids")
    if "input_lengths" not in arrays:
        return [row.tolist() for row in rows]
    lengths = arrays["input_lengths"].reshape(-1).tolist()
    if len(lengths) != len(rows) or any(not 0 < n <= rows.shape[1] for n in lengths):
        raise InvalidRequestError(
            f"'input_lengths' {lengths} does not fit 'input_ids' of shape {list(rows.shape)}.",
            param="input_lengths",
        )
    return [row[:length].tolist() for row, length in zip(rows, lengths, strict=True)]


def _words(arrays: Arrays, name: str) -> word_lists.WordList:
    if name not in arrays:
        return []
    array = arrays[name]
    # One list for the request: rows of a batch that differ would be honoured for the first alone.
    if array.ndim == 3:
        if any(not np.array_equal(array[0], row) for row in array[1:]):
            raise InvalidRequestError(f"'{name}' must be the same for all rows.", param=name)
        array = array[0]
    return word_lists.decode(array, name)


def _required(arrays: Arrays, name: str) -> Any:
    if name not in arrays:
        raise InvalidRequestError(f"'{name}' is missing.", param=name)
    return _scalar(arrays, name, None)


def _scalar(arrays: Arrays, name: str, default: Any) -> Any:
    """The value that all rows of the batch share."""
    if name not in arrays:
        return default
    values = set(arrays[name].reshape(-1).tolist())
    if len(values) != 1:
        raise InvalidRequestError(f"'{name}' must have one value, the same for all rows of the batch.", param=name)
    return values.pop()
