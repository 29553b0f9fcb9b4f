"""Records of the self-test: answers of an engine at its build, with which a load in the same circumstances compares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import transformers

from openai_bls.core.engine_types import EngineInfo
from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.images import prompts as image_prompts
from openai_bls_transformers.model import fused_experts
from openai_bls_transformers.model.image_inputs import ImageInputs
from openai_bls_transformers.record import SelfTestRecord
from openai_bls_transformers.runners.runner_choice import RunnerChoice
from openai_bls_transformers.self_test.plain_pass import REMEDY, Sample
from openai_bls_transformers.self_test.self_test import NEW_TOKENS, Findings, Generate, LoggedError, greedy

# Largest difference of log-probabilities in a replay, where no logits are known.
_REPLAY_TOLERANCES = {torch.float32: 0.01, torch.float16: 0.2, torch.bfloat16: 0.5}
_MOST_REPLAYED_NOISE = 0.1
"""`Noise.share` beyond which answers are not recorded: they would come out otherwise each time."""
_REPLAY_FACTOR = 2.0
"""Times the largest noise of a token, as a difference of log-probabilities, that a replay may differ by."""
_REPLAYED_PROMPTS = 3


def changed_answer(samples: Sequence[Sample], record: SelfTestRecord, dtype: torch.dtype) -> str | None:
    """A difference between answers and the recorded ones, in words; None if they are equal.

    Where rounding sends tokens to another expert now and then, that is not so if one answer of three differs.
    """
    allowed = record.replay_tolerance or _REPLAY_TOLERANCES.get(dtype, 0.5)
    changes = [
        change
        for sample, answer, logprobs in zip(samples, record.token_ids, record.logprobs, strict=True)
        if (change := _change(sample, answer, logprobs, allowed)) is not None
    ]
    exact = dtype == torch.float32 and record.replay_tolerance is None
    return changes[0] if len(changes) > (0 if exact else len(samples) // 2) else None


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
    info: EngineInfo,
    record: SelfTestRecord,
    dtype: torch.dtype,
    generate: Generate,
    images: ImageInputs | None = None,
) -> None:
    """Compare the answers of an engine that serves nobody yet with the recorded ones.

    Raises:
        EngineLoadError: they differ.
    """
    media = () if images is None else image_prompts.make(images.processor, info, NEW_TOKENS)
    with LoggedError() as logged:
        answers = generate(greedy(record.prompts, info, media=media), replayed=True)
        if answers.failure:
            failure: str | None = logged.behind(answers.failure)
        else:
            failure = changed_answer(answers.samples, record, dtype)
    if failure is not None:
        raise EngineLoadError(
            f"the model {info.model_name} does not answer as it did in its last self-test ({failure}), so its weights "
            f"have changed or are corrupt: {REMEDY}"
        )


def make_record(model: Any, choice: RunnerChoice, findings: Findings) -> SelfTestRecord:
    """The record of a self-test that `choice` passed, without answers where those say nothing."""
    noise, kept, tolerance = findings.noise, findings.samples[:_REPLAYED_PROMPTS], None
    if noise is not None:
        tolerance = round(max(_REPLAY_TOLERANCES[torch.bfloat16], _REPLAY_FACTOR * noise.largest), 5)
        kept = kept if noise.share <= _MOST_REPLAYED_NOISE else []
    return SelfTestRecord(
        **_here(model),
        **_recorded(choice),
        plain_experts=fused_experts.has_plain(model),
        prompts=[sample.prompt for sample in kept],
        token_ids=[sample.answer for sample in kept],
        logprobs=[[round(row[0], 5) for row in sample.logprobs] for sample in kept],
        quant_distance=getattr(model, "quant_distance", None),
        fp8_noise=None if noise is None else round(noise.share, 5),
        replay_tolerance=tolerance,
    )


def recorded_choice(record: SelfTestRecord | None, model: Any, choices: Iterable[RunnerChoice]) -> RunnerChoice | None:
    """The one of `choices` with which `model` should give the recorded answers here; None if anything is different."""
    if (
        record is None
        or not record.prompts
        or any(getattr(record, name) != value for name, value in _here(model).items())
    ):
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
