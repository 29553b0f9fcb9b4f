"""Self-test of a loaded engine: greedy answers of its runner against the model's own plain forward pass.

One pass over a prompt and its answer, without any cache and with the attention of the model's own file ("eager"), gives
what each token of the answer should have been. A token passes if it is the likeliest there, or ties with it, and if the
runner's log-probabilities are the pass's. What differs is told in words.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import random
import statistics
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import transformers

from openai_bls.core.engine_types import EngineInfo, GenerationRequest, SamplingParams, TokenDelta
from openai_bls.core.manifest import EngineLoadError, SelfTestRecord, first_line
from openai_bls.engines.embedded import fp8_layers
from openai_bls.engines.embedded.prompt_forward import plain_attention
from openai_bls.engines.embedded.runner_choice import RunnerChoice

REPLAY_SECONDS = 2.0
"""Most that the replay of recorded answers takes of a load, unless the first token takes longer."""
_NEW_TOKENS = 8
_TOP_LOGPROBS = 5
_SEED = 20
_REPLAYED_PROMPTS = 3
# Windows of attention that prompts go beyond, in tokens: more would take a laptop more than seconds.
_LONGEST_WINDOW = {"cpu": 512, "cuda": 1024}
# Difference of log-probabilities in units of the logits' standard deviation, which says how much rounding there is: of
# every token in float32, else of the median, since rounding sends a token to another expert now and then. In bfloat16
# tiny random models of 120 architectures have up to 0.18, and wrong runners 0.5 and more.
_TOLERANCES = {torch.float32: 2e-3, torch.float16: 0.1, torch.bfloat16: 0.25}
# Largest difference of log-probabilities in a replay, where no logits are known.
_REPLAY_TOLERANCES = {torch.float32: 0.01, torch.float16: 0.2, torch.bfloat16: 0.5}
# The same where tokens or the cache are rounded to FP8, in some steps and not in others: random models of up to 28
# layers with weights of the usual spread have up to 0.12, the demo model 0.13.
_FP8_TOLERANCE = 0.4
_FP8_REPLAY_TOLERANCE = 1.0
_STEPS = 16
"""Steps of a number format, at the largest logit, that count as much as a standard deviation of the logits."""
_REMEDY = "compare the files with `openai-bls verify`, or build the engine again"


class Sample(NamedTuple):
    """A prompt and a greedy answer."""

    prompt: list[int]
    token_ids: list[list[int]]
    """Shape [n, 1 + k]: each token of the answer, and the likeliest ones there."""
    logprobs: list[list[float]]
    """Shape [n, 1 + k]: theirs; [n, 0] if none were asked for."""

    @property
    def answer(self) -> list[int]:
        """Token ids of the answer."""
        return [row[0] for row in self.token_ids]


class Reference(NamedTuple):
    """The plain pass over a sample."""

    logprobs: list[list[float]]
    """Shape [n, 1 + k]: of the sample's `token_ids`."""
    best: list[tuple[int, float]]
    """Shape [n]: the likeliest token and its log-probability."""
    spreads: list[float]
    """Shape [n]: standard deviations of the logits."""


class Answers:
    """Listener that collects the answers to a set of requests."""

    def __init__(self, requests: Iterable[GenerationRequest]) -> None:
        self._samples = {one.request_id: Sample(one.prompt_token_ids, [], []) for one in requests}
        self._open = len(self._samples)
        self.began = threading.Event()
        """There is a token, or an end."""
        self.ended = threading.Event()
        self.failure: str | None = None

    def __call__(self, deltas: Sequence[TokenDelta]) -> None:
        """Take the deltas of a step."""
        for delta in deltas:
            sample, found = self._samples[delta.request_id], delta.logprobs
            for i, token_id in enumerate(delta.token_ids):
                sample.token_ids.append([token_id, *(found.top_token_ids[i] if found else ())])
                sample.logprobs.append([found.token_logprobs[i], *found.top_logprobs[i]] if found else [])
            self.failure = self.failure or delta.error
            self._open -= delta.finish_reason is not None
        self.began.set()
        if not self._open:
            self.ended.set()

    def wait(self, cancel: Callable[[int], None] | None) -> None:
        """Wait for all to end; those of a replay are ended by `cancel` after a while."""
        if cancel is not None and not self.ended.wait(REPLAY_SECONDS):
            self.began.wait()
            for request_id in self._samples:
                cancel(request_id)
        self.ended.wait()

    @property
    def samples(self) -> list[Sample]:
        """All of them, in the order of the requests."""
        return list(self._samples.values())


class _LoggedError(logging.Handler):
    """The last error that anything logs while this is open: clients are not told why a request failed."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._said = ""
        self._logged = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        error = record.exc_info[1] if record.exc_info else None
        self._said = first_line(error) if error is not None else record.getMessage().partition("\n")[0]
        self._logged.set()

    def __enter__(self) -> _LoggedError:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)

    def behind(self, failure: str) -> str:
        """The failure of a request, by what was logged of it."""
        self._logged.wait(1.0)  # requests fail first
        return f"it fails: {self._said or failure}"


Generate = Callable[[Sequence[GenerationRequest]], Answers]
"""Runs requests on an engine to their ends."""


def greedy(prompts: Iterable[list[int]], info: EngineInfo, *, logprobs: bool = True) -> list[GenerationRequest]:
    """Requests for the first tokens after `prompts`."""
    return [
        GenerationRequest(
            request_id=-1 - number,
            prompt_token_ids=prompt,
            max_tokens=min(_NEW_TOKENS, info.max_model_len - len(prompt)),
            sampling=SamplingParams(temperature=0),
            logprobs=min(_TOP_LOGPROBS, info.max_logprobs) if logprobs else None,
        )
        for number, prompt in enumerate(prompts)
    ]


def make_prompts(model: Any, info: EngineInfo, page_size: int) -> list[list[int]]:
    """Random prompts, the shortest first: of one token, of less and of more than a page of the KV cache, and around the
    end of a small sliding window or chunk of attention."""
    config = model.config.get_text_config(decoder=True)
    lengths = {1, 6, page_size - 3, 2 * page_size + 5}
    for name in ("sliding_window", "attention_chunk_size"):
        window = getattr(config, name, None)
        if isinstance(window, int) and 0 < window <= _LONGEST_WINDOW[model.device.type]:
            lengths |= {window - 3, window + 9}
    longest = max(1, info.max_model_len - _NEW_TOKENS)
    generator = random.Random(_SEED)
    # Some models take padding for what it is.
    ordinary = [i for i in range(info.vocab_size) if i not in (info.pad_token_id, *info.eos_token_ids)] or [0]
    return [generator.choices(ordinary, k=length) for length in sorted({min(max(1, n), longest) for n in lengths})]


def rounds_to_fp8(model: Any, choice: RunnerChoice) -> bool:
    """True if `choice` runs `model` with tokens or a cache that are rounded to FP8."""
    in_products = model.device.type == "cuda" and fp8_layers.is_quantized(model)
    return in_products or choice.kv_cache_dtype == "fp8"


def problem(
    model: Any, info: EngineInfo, page_size: int, generate: Generate, *, in_fp8: bool = False
) -> tuple[list[Sample], str | None]:
    """The self-test of an engine that serves nobody yet: prompts in one batch, then two of them alone.

    Args:
        model: the one that the engine runs.
        info: the engine's.
        page_size: tokens per page of the KV cache.
        generate: runs requests on the engine.
        in_fp8: see `rounds_to_fp8`.

    Returns:
        The batch, and what is wrong with the answers if something is.

    Raises:
        EngineLoadError: no runner could answer rightly.
    """
    prompts = make_prompts(model, info, page_size)
    samples: list[Sample] = []
    # Alone as most requests are sampled, without log-probabilities; the longest finds a part of itself in the cache.
    for batch in (prompts, [prompts[len(prompts) // 2]], [prompts[-1]]):
        with _LoggedError() as logged:
            answers = generate(greedy(batch, info, logprobs=batch is prompts))
            if answers.failure is not None:
                return [], logged.behind(answers.failure)
        samples += answers.samples
    pairs = [(sample, reference(model, sample)) for sample in samples if sample.token_ids]
    return samples[: len(prompts)], difference(pairs, model.dtype, in_fp8=in_fp8)


@torch.no_grad()  # type: ignore[untyped-decorator]
def reference(model: Any, sample: Sample) -> Reference:
    """The plain forward pass of `model` over `sample`.

    Raises:
        EngineLoadError: its logits mean nothing.
    """
    count = len(sample.token_ids)
    ids = torch.tensor([sample.prompt + sample.answer[:-1]], device=model.device)
    keeps = callable(getattr(model, "_supports_logits_to_keep", None)) and model._supports_logits_to_keep()
    # Attention that is a model's own code was chosen when the model was made.
    switches = getattr(model, "_supports_attention_backend", False)
    with plain_attention(model, "eager") if switches else contextlib.nullcontext():
        output = model(input_ids=ids, use_cache=False, **({"logits_to_keep": count} if keeps else {}))
    logits = output.logits[0, -count:].float()
    # Some models rule out a part of their vocabulary.
    ruled_out = logits == -torch.inf
    if not bool((logits.isfinite() | ruled_out).all()) or bool(ruled_out.all(dim=-1).any()):
        raise EngineLoadError(
            f"the model computes NaN or infinity in {_name(model.dtype)}: its weights are corrupt ({_REMEDY}), or this "
            "data type is too narrow for it (build with --dtype float32)"
        )
    # Logits come in the model's type, whose steps may be larger than what most of a vocabulary differs by.
    step = _STEPS * torch.finfo(model.dtype).eps
    spreads = []
    for row, out in zip(logits, ruled_out, strict=True):
        ruled_in = row[~out]
        spread = float(ruled_in.std(correction=0))
        if not spread:
            raise EngineLoadError(f"the model finds all tokens equally likely, so its weights are empty: {_REMEDY}")
        spreads.append(max(spread, step * float(ruled_in.abs().max())))
    logprobs = logits.log_softmax(dim=-1)
    best = logprobs.max(dim=-1)
    compared = logprobs.gather(-1, torch.tensor(sample.token_ids, device=logits.device))
    return Reference(compared.tolist(), list(zip(best.indices.tolist(), best.values.tolist(), strict=True)), spreads)


def difference(samples: Sequence[tuple[Sample, Reference]], dtype: torch.dtype, *, in_fp8: bool = False) -> str | None:
    """The worst difference between answers and the plain passes over them, in words; None if they are equal."""
    allowed = _FP8_TOLERANCE if in_fp8 else _TOLERANCES.get(dtype, _TOLERANCES[torch.bfloat16])
    worst, words = 0.0, ""
    errors: list[list[float]] = []
    for sample, right in samples:
        errors.append([])
        for i, (token_id, best) in enumerate(zip(sample.answer, right.best, strict=True)):
            found = best[1] - right.logprobs[i][0]
            for own, wanted in zip(sample.logprobs[i], right.logprobs[i], strict=False):
                if own != wanted:  # both may be -inf
                    found = max(found, torch.inf if math.isnan(own) else abs(own - wanted))
            found /= right.spreads[i]
            errors[-1].append(found)
            if found > worst:
                worst = found
                said = f" (log-probability {sample.logprobs[i][0]:.4f})" if sample.logprobs[i] else ""
                words = (
                    f"after a prompt of {len(sample.prompt)} tokens, token {i + 1} is {token_id}{said}, while the "
                    f"model's plain forward pass gives that {right.logprobs[i][0]:.4f}, and {best[0]} {best[1]:.4f}"
                )
    if dtype == torch.float32 and not in_fp8:
        wrong = worst > allowed
    else:
        # What is wrong with long prompts alone, say, has not the median of all tokens.
        medians = [statistics.median(own) for own in errors]
        wrong = any(median > 2 * allowed for median in medians) or (
            statistics.median(itertools.chain(*errors)) > allowed if errors else False
        )
    return f"its answers are wrong: {words}" if wrong else None


def changed_answer(
    samples: Sequence[Sample], record: SelfTestRecord, dtype: torch.dtype, *, in_fp8: bool = False
) -> str | None:
    """A difference between answers and the recorded ones, in words; None if they are equal.

    Where rounding sends tokens to another expert now and then, that is not so if one answer of three differs.
    """
    allowed = _FP8_REPLAY_TOLERANCE if in_fp8 else _REPLAY_TOLERANCES.get(dtype, 0.5)
    changes = [
        change
        for sample, answer, logprobs in zip(samples, record.token_ids, record.logprobs, strict=True)
        if (change := _change(sample, answer, logprobs, allowed)) is not None
    ]
    return changes[0] if len(changes) > (0 if dtype == torch.float32 and not in_fp8 else len(samples) // 2) else None


def _change(sample: Sample, answer: Sequence[int], logprobs: Sequence[float], allowed: float) -> str | None:
    """The first difference, up to where one token of a tie took the place of another, or the answer was cut short."""
    for i, (token_id, wanted, logprob) in enumerate(zip(sample.answer, answer, logprobs, strict=False)):
        found = dict(zip(sample.token_ids[i], sample.logprobs[i], strict=True))
        now = found.get(wanted, -torch.inf)
        if not (abs(now - logprob) <= allowed and found[token_id] - now <= allowed):
            return (
                f"after a prompt of {len(sample.prompt)} tokens, token {i + 1} is {token_id} (log-probability "
                f"{found[token_id]:.4f}), and was {wanted} ({logprob:.4f})"
            )
        if token_id != wanted:
            break
    return None


def replay(
    info: EngineInfo, record: SelfTestRecord, dtype: torch.dtype, generate: Generate, *, in_fp8: bool = False
) -> None:
    """Compare the answers of an engine that serves nobody yet with the recorded ones.

    Raises:
        EngineLoadError: they differ.
    """
    with _LoggedError() as logged:
        answers = generate(greedy(record.prompts, info))
        if answers.failure:
            failure: str | None = logged.behind(answers.failure)
        else:
            failure = changed_answer(answers.samples, record, dtype, in_fp8=in_fp8)
    if failure is not None:
        raise EngineLoadError(
            f"the model {info.model_name} does not answer as it did in its last self-test ({failure}), so its weights "
            f"have changed or are corrupt: {_REMEDY}"
        )


def make_record(model: Any, choice: RunnerChoice, samples: Sequence[Sample]) -> SelfTestRecord:
    """The record of a self-test that `choice` passed."""
    kept = samples[:_REPLAYED_PROMPTS]
    return SelfTestRecord(
        **_here(model),
        **_recorded(choice),
        prompts=[sample.prompt for sample in kept],
        token_ids=[sample.answer for sample in kept],
        logprobs=[[round(row[0], 5) for row in sample.logprobs] for sample in kept],
        quant_distance=getattr(model, "quant_distance", None),
    )


def recorded_choice(record: SelfTestRecord | None, model: Any, choices: Iterable[RunnerChoice]) -> RunnerChoice | None:
    """The one of `choices` with which `model` should give the recorded answers here; None if anything is different."""
    if record is None or any(getattr(record, name) != value for name, value in _here(model).items()):
        return None
    same = (
        choice for choice in choices if all(getattr(record, name) == value for name, value in _recorded(choice).items())
    )
    return next(same, None)


def _recorded(choice: RunnerChoice) -> dict[str, Any]:
    """What a record says of a choice."""
    names = ("runner", "attention", "shared_steps", "kv_cache_dtype")
    return {name: getattr(choice, name) for name in names}


def _here(model: Any) -> dict[str, Any]:
    device = model.device
    kind = str(device.type)
    if kind == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        kind = f"{torch.cuda.get_device_name(device)} ({major}.{minor})"
    versions = {"torch": str(torch.__version__), "transformers": transformers.__version__}
    return {"device": kind, "versions": versions, "dtype": _name(model.dtype)}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
