"""Official input tensors of `tensorrt_llm`: parser from one Triton request to engine requests.

Source: tensorrtllm_backend's `all_models/inflight_batcher_llm/tensorrt_llm`. Kept: names, shapes, defaults. Different,
and said so: what the engine cannot do is refused by name instead of ignored, a temperature without top_k or top_p is
honoured, and `structural_tag` is a further guide type.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from openai_bls.core import word_lists
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, SamplingParams
from openai_bls.core.errors import InvalidRequestError
from openai_bls.triton_models.tensorrt_llm import guides
from openai_bls.triton_models.tensorrt_llm.values import scalar, unsupported
from openai_bls.triton_models.tensors.arrays import Arrays, is_true
from openai_bls.triton_models.tensors.models import LOG_PROBS, LOGITS, TENSORRT_LLM

# Inputs that are declared so that official clients may send them, and the values at which they change nothing.
# Of no effect without beam search or top_p_decay, whatever they hold: len_penalty, early_stopping and
# runtime_top_p_reset_ids.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "beam_width": (0, 1),
    "beam_search_diversity_rate": (0.0,),
    # A lower bound for the top_p that runtime_top_p_decay shrinks, no min_p.
    "runtime_top_p_min": (0.0,),
    "runtime_top_p_decay": (0.0, 1.0),
    "return_context_logits": (False,),
    "return_generation_logits": (False,),
    "return_perf_metrics": (False,),
}
# Inputs that depend on the engine: the name in `EngineInfo.supported`, and the value that changes nothing.
_SUPPORTED: dict[str, tuple[str, Any]] = {
    "repetition_penalty": ("repetition_penalty", 1.0),
    "presence_penalty": ("presence_penalty", 0.0),
    "frequency_penalty": ("frequency_penalty", 0.0),
    "min_tokens": ("min_tokens", 0),
    # Its name up to 0.19.
    "min_length": ("min_tokens", 0),
    "return_log_probs": ("logprobs", False),
}
# As the engines have it: 100 chooses a token, -100 keeps it away.
_MAX_BIAS = 100.0
_LOG_PROBS = frozenset(tensor.name for tensor in LOG_PROBS)
_LOGITS = frozenset(tensor.name for tensor in LOGITS)
_OUTPUTS = frozenset(tensor.name for tensor in TENSORRT_LLM.outputs)


class OfficialRequest(msgspec.Struct, frozen=True):
    """One Triton request of the contract."""

    prompts: list[list[int]]
    """Prompts, one for each row of the batch."""
    template: GenerationRequest
    """Everything but the id and the prompt."""
    return_sequences: int
    streaming: bool
    exclude_input: bool
    max_model_len: int
    """Most tokens of a prompt and its output together."""
    dummies: frozenset[str] = frozenset()
    """Outputs of logits to send in whole answers, which hold a zero unless they are asked for, as officially."""

    def engine_request(self, request_id: int, row: int, index: int) -> GenerationRequest:
        """The engine request of sequence `index` of a row."""
        sampling = self.template.sampling
        if sampling.seed is not None:
            # Every sequence has a seed of its own, or they would all be the same.
            sampling = msgspec.structs.replace(sampling, seed=(sampling.seed + index) % 2**64)
        prompt = self.prompts[row]
        # As officially, an output that the context has no room for is shortened; without any room the engine refuses.
        max_tokens = min(self.template.max_tokens, max(1, self.max_model_len - len(prompt)))
        return msgspec.structs.replace(
            self.template,
            request_id=request_id,
            prompt_token_ids=prompt,
            sampling=sampling,
            max_tokens=max_tokens,
            min_tokens=min(self.template.min_tokens, max_tokens),
        )


def is_stop(arrays: Arrays) -> bool:
    """True for a stop request, which ends the live request of the same Triton request id."""
    return "stop" in arrays and bool(arrays["stop"].reshape(-1)[0])


def parse(
    arrays: Arrays,
    info: EngineInfo,
    exclude_input_default: bool,
    prompts: list[list[int]] | None = None,
    outputs: frozenset[str] = frozenset(),
) -> OfficialRequest:
    """The request that the input tensors hold.

    Args:
        arrays: the tensors by name.
        info: facts of the engine.
        exclude_input_default: value of `exclude_input_in_output` for requests that do not give it.
        prompts: prompts in token ids, one per row; None reads them from `input_ids`.
        outputs: names of the outputs to send, as Triton tells them: all where the client names none.

    Raises:
        InvalidRequestError: a missing or bad tensor, or one that asks for what this engine does not do.
    """
    _refuse_what_no_engine_does(arrays, info)
    streaming = scalar(arrays, "streaming", False)
    logprobs = is_true(arrays, "return_log_probs")
    if "return_log_probs" in arrays:
        _if_supported(arrays, "return_log_probs", info)
    else:
        logprobs = wants_log_probs(outputs, _OUTPUTS, info, streaming)
    if outputs < _OUTPUTS and outputs & _LOGITS:
        raise unsupported(min(outputs & _LOGITS))
    end_id = scalar(arrays, "end_id", None)
    max_tokens = _required(arrays, "request_output_len")
    if max_tokens < 1:
        raise InvalidRequestError("'request_output_len' must be at least 1.", param="request_output_len")
    stop_token_ids = _stop_token_ids(end_id, info)
    template = GenerationRequest(
        request_id=0,
        prompt_token_ids=[],
        max_tokens=max_tokens,
        sampling=_sampling(arrays, info),
        stop_token_ids=stop_token_ids,
        stop_words=_stop_words(arrays, stop_token_ids, info),
        bad_words=tuple(_words(arrays, "bad_words_list")),
        min_tokens=_min_tokens(arrays, info, max_tokens),
        logprobs=0 if logprobs else None,
        grammar=guides.grammar(arrays, info),
    )
    return_sequences = scalar(arrays, "num_return_sequences", 1)
    if not 1 <= return_sequences <= 128:
        raise InvalidRequestError("'num_return_sequences' must be between 1 and 128.", param="num_return_sequences")
    return OfficialRequest(
        prompts=_prompts(arrays) if prompts is None else prompts,
        template=template,
        return_sequences=return_sequences,
        streaming=streaming,
        exclude_input=scalar(arrays, "exclude_input_in_output", exclude_input_default),
        max_model_len=info.max_model_len,
        dummies=outputs & _LOGITS,
    )


def wants_log_probs(outputs: frozenset[str], declared: frozenset[str], info: EngineInfo, streaming: bool) -> bool:
    """True if a request that does not say `return_log_probs` gets log-probabilities: for one of their outputs.

    A client that names no output gets those of whole answers, where the engine has them: old official clients read
    them unasked.

    Args:
        outputs: names of the outputs to send: all where the client names none.
        declared: names of all outputs of the model.
        info: facts of the engine.
        streaming: the answer is streamed.

    Raises:
        InvalidRequestError: the client names such an output, and this engine has none.
    """
    wanted = outputs & _LOG_PROBS
    if not wanted:
        return False
    has_them = "logprobs" in info.supported
    if outputs < declared:
        if not has_them:
            raise unsupported(min(wanted))
        return True
    return has_them and not streaming


def require_one_response(request: OfficialRequest) -> None:
    """Check a request to an engine whose decoupled_mode is false; raises `InvalidRequestError`."""
    several = {
        "streaming": request.streaming,
        "num_return_sequences": request.return_sequences > 1,
        "input_ids": len(request.prompts) > 1,
    }
    for name, value in several.items():
        if value:
            raise InvalidRequestError(
                f"'{name}' asks for several responses, but this server has decoupled_mode=false, which is one response "
                "per request (`openai-bls render --set tensorrt_llm.decoupled_mode=true` changes it).",
                param=name,
            )


def _refuse_what_no_engine_does(arrays: Arrays, info: EngineInfo) -> None:
    for name, neutral in _NEUTRAL.items():
        if scalar(arrays, name, neutral[0]) not in neutral:
            raise unsupported(name, neutral)
    if "decoder_input_ids" in arrays and arrays["decoder_input_ids"].shape[-1] > 1:
        raise InvalidRequestError(
            "'decoder_input_ids' is for encoder-decoder models, which no engine here is; the one token that "
            "preprocessing gives as 'DECODER_INPUT_ID' changes nothing.",
            param="decoder_input_ids",
        )
    if "lora_task_id" in arrays:
        names = f": {', '.join(info.lora_names)}" if info.lora_names else ""
        raise InvalidRequestError(
            f"'lora_task_id' is not supported: adapters are served as models of their own name by openai_bls{names}.",
            param="lora_task_id",
        )


def _if_supported(arrays: Arrays, name: str, info: EngineInfo) -> Any:
    """The value of an input of `_SUPPORTED`; its neutral value if it is not given."""
    field, neutral = _SUPPORTED[name]
    value = scalar(arrays, name, neutral)
    if value != neutral and field not in info.supported:
        raise unsupported(name, (neutral,))
    return value


def _stop_token_ids(end_id: int | None, info: EngineInfo) -> tuple[int, ...]:
    """The model's own end tokens if none or one of them is named; -1 is the official way to say "none at all"."""
    if end_id is None or end_id in info.eos_token_ids:
        return info.eos_token_ids
    return (end_id,) if end_id >= 0 else ()


def _stop_words(arrays: Arrays, stop_token_ids: tuple[int, ...], info: EngineInfo) -> tuple[tuple[int, ...], ...]:
    """Stop words that can end the output: those that cannot are refused."""
    name = "stop_words_list"
    words = _words(arrays, name)
    for word in words:
        if max(word) >= info.vocab_size:
            raise InvalidRequestError(
                f"'{name}' holds the token id {max(word)}; the vocabulary has {info.vocab_size} tokens.", param=name
            )
        for token_id in word[:-1]:
            if token_id in stop_token_ids:
                raise InvalidRequestError(
                    f"'{name}' ('stop_words' of an ensemble) goes on after the token {token_id}, where the output "
                    "ends, so it can never match: leave off what follows, or give 'end_id': -1.",
                    param=name,
                )
    return tuple(words)


def _min_tokens(arrays: Arrays, info: EngineInfo, max_tokens: int) -> int:
    name = "min_length" if "min_length" in arrays and "min_tokens" not in arrays else "min_tokens"
    value: int = _if_supported(arrays, name, info)
    if not 0 <= value <= max_tokens:
        raise InvalidRequestError(f"'{name}' must be between 0 and 'request_output_len' ({max_tokens}).", param=name)
    return value


def _sampling(arrays: Arrays, info: EngineInfo) -> SamplingParams:
    top_k = scalar(arrays, "runtime_top_k", None)
    top_p = scalar(arrays, "runtime_top_p", None)
    temperature = scalar(arrays, "temperature", None)
    if temperature is not None and not 0 <= temperature < math.inf:
        raise InvalidRequestError("'temperature' must not be negative.", param="temperature")
    if top_p is not None and not 0 <= top_p <= 1:
        raise InvalidRequestError("'runtime_top_p' must be between 0 and 1.", param="runtime_top_p")
    if top_k is not None and top_k < 0:
        raise InvalidRequestError("'runtime_top_k' must not be negative.", param="runtime_top_k")
    # As in the official samplers, of which neither knows a top_p of 0: without a limit by either one it is greedy, and
    # beside a top_k it is "off". A temperature alone is honoured, though.
    limited = bool(top_k or top_p) or (top_k is None and top_p is None and temperature is not None)
    return SamplingParams(
        temperature=0.0 if not limited else 1.0 if temperature is None else temperature,
        top_p=top_p or 1.0,
        top_k=top_k or 0,
        seed=scalar(arrays, "seed", scalar(arrays, "random_seed", None)),
        repetition_penalty=_repetition_penalty(arrays, info),
        presence_penalty=_penalty(arrays, "presence_penalty", info),
        frequency_penalty=_penalty(arrays, "frequency_penalty", info),
        logit_bias=_bias(arrays, info),
    )


def _repetition_penalty(arrays: Arrays, info: EngineInfo) -> float:
    value: float = _if_supported(arrays, "repetition_penalty", info)
    if not 0 < value < math.inf:
        raise InvalidRequestError("'repetition_penalty' must be above 0.", param="repetition_penalty")
    return value


def _penalty(arrays: Arrays, name: str, info: EngineInfo) -> float:
    value: float = _if_supported(arrays, name, info)
    if not -2 <= value <= 2:
        raise InvalidRequestError(f"'{name}' must be between -2 and 2.", param=name)
    return value


def _bias(arrays: Arrays, info: EngineInfo) -> dict[int, float]:
    """Token id → what `embedding_bias` [batch, n] adds to its score; ids from n on get nothing."""
    name = "embedding_bias"
    if name not in arrays or not np.any(arrays[name]):
        return {}
    if "logit_bias" not in info.supported:
        raise unsupported(name)
    row = _shared_row(arrays[name].reshape(-1, arrays[name].shape[-1]), name)
    ids = np.flatnonzero(row)
    if ids[-1] >= info.vocab_size:
        raise InvalidRequestError(
            f"'{name}' has a value for token {ids[-1]}; the vocabulary has {info.vocab_size} tokens.", param=name
        )
    values = row[ids]
    if not np.all(values <= _MAX_BIAS):
        raise InvalidRequestError(f"'{name}' must hold numbers of at most {_MAX_BIAS:.0f}.", param=name)
    # That low is never, and unlike -inf it may be all that there is.
    return dict(zip(ids.tolist(), np.maximum(values, -_MAX_BIAS).tolist(), strict=True))


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
    return word_lists.decode(_shared_row(array, name) if array.ndim == 3 else array, name)


def _shared_row(rows: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """The first of rows that must be equal: those that differ would be honoured for the first alone."""
    if any(not np.array_equal(rows[0], row) for row in rows[1:]):
        raise InvalidRequestError(f"'{name}' must be the same for all rows.", param=name)
    row: np.ndarray[Any, Any] = rows[0]
    return row


def _required(arrays: Arrays, name: str) -> Any:
    if name not in arrays:
        raise InvalidRequestError(f"'{name}' is missing.", param=name)
    return scalar(arrays, name, None)
