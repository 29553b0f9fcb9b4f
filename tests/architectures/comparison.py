"""Comparison of the embedded engine with transformers' `generate`, from the checkpoint to the tokens."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from openai_bls.builder.build import build
from openai_bls.builder.recipe import BuildOptions
from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.registry import create_engine
from tests.unit.core_support import VOCAB_SIZE
from tests.unit.engines.engine_support import Recorder, request, run_all

NEW_TOKENS = 12
# Shorter and longer than a window, and than what rope variants call long.
_LENGTHS = (5, 38, 11, 23)
_TIE = 1e-4
_TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Generated:
    """Greedy tokens of a prompt with their log-probabilities."""

    tokens: list[int]
    logprobs: list[float]
    margins: list[float] = dataclasses.field(default_factory=list)
    """Distance of each token to the next likely one."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of an architecture."""

    outcome: str
    """`fast`, `slow`, `refused at the build`, `refused at the load`, `wrong`, `fails`."""
    detail: str = ""


def prompts() -> list[list[int]]:
    """Four prompts of different lengths."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, 250, (length,), generator=generator).tolist() for length in _LENGTHS]


def expected(checkpoint: Path) -> list[Generated]:
    """What transformers' `generate` says to each of `prompts`, one by one."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    found = []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        output: Any = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        best = [logits[0].float().log_softmax(-1).topk(2) for logits in output.logits]
        tokens = output.sequences[0, len(prompt) :].tolist()
        found.append(
            Generated(
                tokens,
                [float(top.values[0]) for top in best],
                [float(top.values[0] - top.values[1]) for top in best],
            )
        )
    return found


def difference(got: Generated, wanted: Generated) -> str:
    """The first one; empty if there is none. Where two tokens tie, either is right, and what follows is not compared."""
    if len(got.tokens) != len(wanted.tokens):
        return f"{len(got.tokens)} tokens instead of {len(wanted.tokens)}"
    for at, (token, right) in enumerate(zip(got.tokens, wanted.tokens, strict=True)):
        if abs(got.logprobs[at] - wanted.logprobs[at]) > _TOLERANCE:
            return f"log-probability {got.logprobs[at]:.4f} instead of {wanted.logprobs[at]:.4f} at token {at}"
        if token != right:
            return "" if wanted.margins[at] < _TIE else f"token {at} is {token} instead of {right}"
    return ""


def answers(engine: Any, recorder: Recorder, first_id: int, ids: list[list[int]]) -> list[Generated]:
    """The engine's, to prompts that it gets together."""
    run_all(
        engine,
        recorder,
        [request(first_id + n, prompt=prompt, max_tokens=NEW_TOKENS, logprobs=0) for n, prompt in enumerate(ids)],
    )
    found = []
    for n in range(len(ids)):
        end = recorder.ends[first_id + n]
        if end.error is not None:
            raise RuntimeError(end.error)
        logprobs = recorder.logprobs(first_id + n).token_logprobs
        found.append(Generated(recorder.tokens[first_id + n], logprobs))
    return found


def compare(checkpoint: Path, repository: Path) -> Result:
    """Build `checkpoint` into `repository`, load it, and compare batched and lone answers with transformers'."""
    try:
        build(BuildOptions(str(checkpoint), repository), lambda line: None)
    except EngineLoadError as error:
        return Result("refused at the build", str(error))
    recorder = Recorder()
    try:
        engine = create_engine(repository / "tensorrt_llm" / "1", recorder, {"num_threads": "1"})
    except EngineLoadError as error:
        return Result("refused at the load", str(error))
    try:
        batched = answers(engine, recorder, 0, prompts())
        alone = answers(engine, recorder, 10, prompts()[1:2])
    except RuntimeError as error:
        return Result("fails", str(error))
    finally:
        engine.close()
    wanted = expected(checkpoint)
    if len({token for one in wanted for token in one.tokens}) < VOCAB_SIZE // 20:
        raise AssertionError("the model says too little to compare")
    for name, got, right in [
        *((f"batched {n}", got, right) for n, (got, right) in enumerate(zip(batched, wanted, strict=True))),
        ("alone", alone[0], wanted[1]),
    ]:
        told = difference(got, right)
        if told:
            return Result("wrong", f"{name}: {told}")
    return Result("fast")
