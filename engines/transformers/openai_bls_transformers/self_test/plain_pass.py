"""Plain forward passes of a model over greedy answers: what each token should have been, and what rounding does to it.

A pass has no cache, the attention of the model's own file ("eager") and PyTorch's own products; a prompt with images
goes through transformers' `generate`. Where the engine rounds
to FP8, a second one rounds as well: what differs between the two is how far rounding alone moves the model's answers.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
import transformers

from openai_bls.core.manifest import EngineLoadError
from openai_bls.core.media import MediaPrompt
from openai_bls_transformers import cache_argument, fp8_numbers
from openai_bls_transformers.model import fp8_layers
from openai_bls_transformers.model.prompt_forward import plain_attention

TOP_LOGPROBS = 5
"""Likeliest tokens that are compared at each place."""
REMEDY = "compare the files with `openai-bls verify`, or build the engine again"
_STEPS = 16
"""Steps of a number format, at the largest logit, that count as much as a standard deviation of the logits."""
_MOST_NOISE = 1 / 3
"""Noise beyond which a model is not served, as a share of `Reference.reach`: its answers are mostly rounding, and three
times as much could not be told from wrong ones. Trained models have 0.02 to 0.03, a random 7B 0.2."""


class Rounding(NamedTuple):
    """Numbers that an engine rounds to FP8 beside a model's weights."""

    activations: bool = False
    """Inputs of products, in some steps and not in others."""
    cache: bool = False
    """Keys and values."""

    def __bool__(self) -> bool:
        return self.activations or self.cache


EXACT = Rounding()


class Sample(NamedTuple):
    """A prompt and a greedy answer."""

    prompt: list[int]
    token_ids: list[list[int]]
    """Shape [n, 1 + k]: each token of the answer, and the likeliest ones there."""
    logprobs: list[list[float]]
    """Shape [n, 1 + k]: theirs; [n, 0] if none were asked for."""
    media: MediaPrompt | None = None
    """Images of the prompt."""

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
    noise: list[float]
    """Shape [n]: largest difference of log-probabilities that rounding alone makes, among the tokens that are likeliest
    with it; [0] without rounding or the sample's log-probabilities."""
    reach: list[float]
    """Shape [n]: the likeliest token's log-probability less the mean of all, which wrong answers differ by and more."""


class Noise(NamedTuple):
    """Differences of log-probabilities that rounding to FP8 alone makes."""

    deviations: float
    """Median, in standard deviations of the logits."""
    share: float
    """Median, as a share of `Reference.reach`."""
    largest: float


class RoundedCache(transformers.DynamicCache):  # type: ignore[misc]
    """KV cache of a pass that keeps keys and values as FP8 does."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Keys and values of a layer so far."""
        return super().update(fp8_numbers.rounded(key_states), fp8_numbers.rounded(value_states), *args, **kwargs)


@torch.no_grad()  # type: ignore[untyped-decorator]
def reference(
    model: Any, sample: Sample, rounding: Rounding = EXACT, images: Mapping[str, Any] | None = None
) -> Reference:
    """The plain forward pass of `model` over `sample`, and how far `rounding` takes another from it.

    Args:
        model: model on its device.
        sample: prompt and answer.
        rounding: rounding of the engine to FP8.
        images: the model's arguments for the images of the prompt; None without images.

    Raises:
        EngineLoadError: its logits mean nothing.
    """
    logits = _logits(model, sample) if images is None else _generated_logits(model, sample, images)
    # Some models rule out a part of their vocabulary.
    ruled_out = logits == -torch.inf
    if not bool((logits.isfinite() | ruled_out).all()) or bool(ruled_out.all(dim=-1).any()):
        dtype = str(model.dtype).removeprefix("torch.")
        raise EngineLoadError(
            f"the model computes NaN or infinity in {dtype}: its weights are corrupt ({REMEDY}), or this "
            "data type is too narrow for it (build with --dtype float32)"
        )
    # Logits come in the model's type, whose steps may be larger than what most of a vocabulary differs by.
    step = _STEPS * torch.finfo(model.dtype).eps
    spreads, reach = [], []
    for row, out in zip(logits, ruled_out, strict=True):
        ruled_in = row[~out]
        spread = float(ruled_in.std(correction=0))
        if not spread:
            raise EngineLoadError(f"the model finds all tokens equally likely, so its weights are empty: {REMEDY}")
        spreads.append(max(spread, step * float(ruled_in.abs().max())))
        reach.append(float(ruled_in.max() - ruled_in.mean()))
    logprobs = logits.log_softmax(dim=-1)
    best = logprobs.max(dim=-1)
    compared = logprobs.gather(-1, torch.tensor(sample.token_ids, device=logits.device))
    noise: list[float] = []
    if rounding and sample.logprobs[0]:
        top = _logits(model, sample, rounding).log_softmax(dim=-1).topk(min(TOP_LOGPROBS, logits.shape[-1]), dim=-1)
        exact = logprobs.gather(-1, top.indices)
        found = torch.maximum((top.values - exact).abs().amax(-1), best.values - exact[:, 0])
        noise = found.tolist()
    best_pairs = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return Reference(compared.tolist(), best_pairs, spreads, noise, reach)


def _logits(model: Any, sample: Sample, rounding: Rounding = EXACT) -> torch.Tensor:
    """Logits of each token of an answer, float32 [n, vocabulary]."""
    count = len(sample.token_ids)
    ids = torch.tensor([sample.prompt + sample.answer[:-1]], device=model.device)
    keeps = callable(getattr(model, "_supports_logits_to_keep", None)) and model._supports_logits_to_keep()
    named: dict[str, Any] = {"logits_to_keep": count} if keeps else {}
    if rounding.cache:
        named[cache_argument.NAME] = RoundedCache(config=model.config)
    # Attention that is a model's own code was chosen when the model was made.
    switches = getattr(model, "_supports_attention_backend", False)
    with (
        plain_attention(model, "eager") if switches else contextlib.nullcontext(),
        fp8_layers.plain_products(rounded=rounding.activations),
    ):
        output = model(input_ids=ids, use_cache=rounding.cache, **named)
    found: torch.Tensor = output.logits[0, -count:].float()
    return found


class _Forced(transformers.LogitsProcessor):  # type: ignore[misc]
    """Lets `generate` take the tokens of an answer, whatever its logits say."""

    def __init__(self, prompt_length: int, answer: list[int]) -> None:
        self._start, self._answer = prompt_length, answer

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores of the next token."""
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self._answer[input_ids.shape[1] - self._start]] = 0.0
        return forced


def _generated_logits(model: Any, sample: Sample, images: Mapping[str, Any]) -> torch.Tensor:
    """Logits of each token of an answer to a prompt with images, float32 [n, vocabulary], by transformers' `generate`.

    What a token behind an image has for a position and may see is the model's own way to go on.
    """
    ids = torch.tensor([sample.prompt], device=model.device)
    before, model.generation_config = model.generation_config, transformers.GenerationConfig()
    try:
        switches = getattr(model, "_supports_attention_backend", False)
        with plain_attention(model, "eager") if switches else contextlib.nullcontext():
            output = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                **images,
                max_new_tokens=len(sample.token_ids),
                do_sample=False,
                pad_token_id=0,
                logits_processor=[_Forced(len(sample.prompt), sample.answer)],
                output_logits=True,
                return_dict_in_generate=True,
            )
    finally:
        model.generation_config = before
    return torch.cat(output.logits).float()


def noise_of(references: Iterable[Reference]) -> Noise:
    """The noise of rounding to FP8.

    Raises:
        EngineLoadError: it leaves too little of the model's answers.
    """
    found = [
        (value, value / spread, value / reach)
        for right in references
        for value, spread, reach in zip(right.noise, right.spreads, right.reach, strict=False)
    ]
    values, deviations, shares = zip(*found, strict=True)
    noise = Noise(statistics.median(deviations), statistics.median(shares), max(values))
    if not noise.share <= _MOST_NOISE:
        raise EngineLoadError(
            "FP8 does not hold this model's quality: rounding alone changes its log-probabilities by "
            f"{noise.share:.0%} of what sets the likeliest token apart from the mean (median), and at most "
            f"{_MOST_NOISE:.0%} is served: take a checkpoint that is not in FP8, without --quant fp8, and leave "
            "kv_cache_dtype at auto"
        )
    return noise
