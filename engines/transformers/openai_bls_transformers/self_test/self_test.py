"""Self-test of a loaded engine: greedy answers of its runner against the model's own plain forward pass.

One pass over a prompt and its answer, without any cache and with the attention of the model's own file ("eager"), gives
what each token of the answer should have been. A token passes if it is the likeliest there, or ties with it, and if the
runner's log-probabilities are the pass's. What differs is told in words.

How much may differ goes by the data type, and where the engine rounds to FP8, by what that rounding alone does to the
model, which a second pass shows (`plain_pass`).
"""

from __future__ import annotations

import itertools
import logging
import math
import random
import statistics
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from openai_bls.core.engine_types import EngineInfo, GenerationRequest, SamplingParams, TokenDelta
from openai_bls.core.manifest import first_line
from openai_bls.engines import not_finite
from openai_bls.engines.images import prompts as image_prompts
from openai_bls_transformers.model import fp8_layers
from openai_bls_transformers.model.image_inputs import ImageInputs
from openai_bls_transformers.runners.runner_choice import RunnerChoice
from openai_bls_transformers.self_test.plain_pass import (
    EXACT,
    TOP_LOGPROBS,
    Noise,
    Reference,
    Rounding,
    Sample,
    noise_of,
    reference,
)

logger = logging.getLogger(__name__)

REPLAY_SECONDS = 2.0
"""Most that the replay of recorded answers takes of a load, unless the first token takes longer."""
NEW_TOKENS = 8
_SEED = 20
# Windows of attention that prompts go beyond, in tokens: more would take a laptop more than seconds.
_LONGEST_WINDOW = {"cpu": 512, "cuda": 1024}
# Difference of log-probabilities in units of the logits' standard deviation, which says how much rounding there is: of
# every token in float32, else of the median, since rounding sends a token to another expert now and then. In bfloat16
# tiny random models of 120 architectures have up to 0.18, and wrong runners 0.5 and more.
_TOLERANCES = {torch.float32: 2e-3, torch.float16: 0.1, torch.bfloat16: 0.25}
_NOISE_FACTOR = 2.0
"""Times the noise of rounding to FP8 (`Noise.deviations`) that the median of all tokens may be."""
_PROMPT_NOISE_FACTOR = 3.0
"""Times the noise of rounding to FP8 that the median of one prompt's tokens may be."""


class Answers:
    """Listener that collects the answers to a set of requests."""

    def __init__(self, requests: Iterable[GenerationRequest]) -> None:
        self._samples = {one.request_id: Sample(one.prompt_token_ids, [], [], one.media) for one in requests}
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


class LoggedError(logging.Handler):
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

    def __enter__(self) -> LoggedError:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)

    def behind(self, failure: str) -> str:
        """The failure of a request, by what was logged of it."""
        self._logged.wait(1.0)  # requests fail first
        return f"it fails: {self._said or failure}"


class Generate(Protocol):
    """Runs requests on an engine to their ends."""

    def __call__(self, requests: Sequence[GenerationRequest], *, replayed: bool = False) -> Answers:
        """Their answers; those of a replay may be cut short."""


def greedy(
    prompts: Iterable[list[int]],
    info: EngineInfo,
    *,
    logprobs: bool = True,
    media: Sequence[image_prompts.Prompt] = (),
) -> list[GenerationRequest]:
    """Requests for the first tokens after `prompts`; those among them that `media` has hold its images."""
    images = {tuple(prompt.token_ids): prompt.media for prompt in media}
    return [
        GenerationRequest(
            request_id=-1 - number,
            prompt_token_ids=prompt,
            max_tokens=min(NEW_TOKENS, info.max_model_len - len(prompt)),
            sampling=SamplingParams(temperature=0),
            logprobs=min(TOP_LOGPROBS, info.max_logprobs) if logprobs else None,
            media=images.get(tuple(prompt)),
        )
        for number, prompt in enumerate(prompts)
    ]


def make_prompts(model: Any, info: EngineInfo, page_size: int, reserved: Collection[int] = ()) -> list[list[int]]:
    """Random prompts, the shortest first: of one token, of less and of more than a page of the KV cache, and around the
    end of a small sliding window or chunk of attention. None holds a token of `reserved`."""
    config = model.config.get_text_config(decoder=True)
    lengths = {1, 6, page_size - 3, 2 * page_size + 5}
    for name in ("sliding_window", "attention_chunk_size"):
        window = getattr(config, name, None)
        if isinstance(window, int) and 0 < window <= _LONGEST_WINDOW[model.device.type]:
            lengths |= {window - 3, window + 9}
    longest = max(1, info.max_model_len - NEW_TOKENS)
    generator = random.Random(_SEED)
    # Some models take padding for what it is.
    others = {info.pad_token_id, *info.eos_token_ids, *reserved}
    ordinary = [i for i in range(info.vocab_size) if i not in others] or [0]
    return [generator.choices(ordinary, k=length) for length in sorted({min(max(1, n), longest) for n in lengths})]


class Findings(NamedTuple):
    """Outcome of a self-test."""

    samples: list[Sample]
    """Answers to a batch of prompts."""
    problem: str | None
    """Fault of the answers, in words; None if there is none."""
    noise: Noise | None = None
    """None without rounding to FP8."""


def rounding_of(model: Any, choice: RunnerChoice) -> Rounding:
    """What is rounded to FP8 where `choice` runs `model`."""
    on_gpu = model.device.type == "cuda"
    return Rounding(on_gpu and fp8_layers.is_quantized(model), choice.kv_cache_dtype == "fp8")


def find(
    model: Any,
    info: EngineInfo,
    page_size: int,
    generate: Generate,
    rounding: Rounding = EXACT,
    images: ImageInputs | None = None,
) -> Findings:
    """The self-test of an engine that serves nobody yet: prompts in one batch, then some of them alone.

    Args:
        model: the one that the engine runs.
        info: facts of the engine.
        page_size: tokens per page of the KV cache.
        generate: runs requests on the engine.
        rounding: rounding of the engine to FP8.
        images: prepares images; None if the model takes none. Prompts with images are in the batch then.

    Raises:
        EngineLoadError: no runner could answer rightly.
    """
    media = () if images is None else image_prompts.make(images.processor, info, NEW_TOKENS)
    reserved = () if images is None else images.processor.image_token_ids
    prompts = [prompt.token_ids for prompt in media]
    if images is None or not images.needs_image:
        prompts += make_prompts(model, info, page_size, reserved)
    samples: list[Sample] = []
    # Alone as most requests are sampled, without log-probabilities; the longest finds a part of itself in the cache, as
    # may one with images. With weights in FP8 the longest has them, since a token alone is not rounded and has a kernel
    # of its own.
    for batch, logprobs in (
        (prompts, True),
        ([prompts[len(prompts) // 2]], False),
        *([([media[-1].token_ids], False)] if media else []),
        ([prompts[-1]], rounding.activations),
    ):
        with LoggedError() as logged:
            answers = generate(greedy(batch, info, logprobs=logprobs, media=media))
            if answers.failure is not None:
                if not_finite.WORDS in answers.failure:
                    _require_finite(model, answers.samples, images)
                return Findings([], logged.behind(answers.failure))
        samples += answers.samples
    pairs = [
        (sample, reference(model, sample, rounding, _arguments(sample, images)))
        for sample in samples
        if sample.token_ids
    ]
    batch_samples = samples[: len(prompts)]
    if not rounding or not pairs:
        return Findings(batch_samples, difference(pairs, model.dtype))
    noise = noise_of([right for _, right in pairs])
    return Findings(batch_samples, difference(pairs, model.dtype, noise), noise)


def _require_finite(model: Any, samples: Iterable[Sample], images: ImageInputs | None) -> None:
    """Plain passes over answers, up to the token where each ended.

    Raises:
        EngineLoadError: it is no runner's fault: the model itself computes NaN or infinity.
    """
    for sample in samples:
        answer = [[token_id] for token_id in (*sample.answer, sample.prompt[-1])]
        whole = Sample(sample.prompt, answer, [[]] * len(answer), sample.media)
        reference(model, whole, images=_arguments(sample, images))


def _arguments(sample: Sample, images: ImageInputs | None) -> Mapping[str, Any] | None:
    """The model's arguments for the images of a sample; None if it has none."""
    if sample.media is None or images is None:
        return None
    return images.arguments(sample.prompt, sample.media)


def difference(
    samples: Sequence[tuple[Sample, Reference]], dtype: torch.dtype, noise: Noise | None = None
) -> str | None:
    """The worst difference between answers and the plain passes over them, in words; None if they are equal.

    Args:
        samples: each with its plain pass.
        dtype: data type of the model's weights.
        noise: noise of rounding to FP8; None without such rounding.
    """
    exact = dtype == torch.float32 and noise is None
    tolerance = _TOLERANCES.get(dtype, _TOLERANCES[torch.bfloat16])
    # What is wrong with long prompts alone, say, has not the median of all tokens.
    of_all, of_one = tolerance, 2 * tolerance
    if noise is not None:
        of_all = max(of_all, _NOISE_FACTOR * noise.deviations)
        of_one = max(of_one, _PROMPT_NOISE_FACTOR * noise.deviations)
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
    medians = [statistics.median(own) for own in errors]
    middle = statistics.median(itertools.chain(*errors)) if errors else 0.0
    logger.info(
        "differences from the plain pass, in standard deviations of the logits: median %.4f, by prompt %s, largest "
        "%.4f; allowed %.4f%s",
        middle,
        " ".join(f"{median:.4f}" for median in medians),
        worst,
        of_all,
        ""
        if noise is None
        else f", rounding to FP8 alone makes {noise.deviations:.4f} ({noise.share:.1%} of the reach)",
    )
    wrong = worst > of_all if exact else middle > of_all or any(median > of_one for median in medians)
    return f"its answers are wrong: {words}" if wrong else None
