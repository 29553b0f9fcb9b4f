"""Comparison of the embedded engine with transformers' `generate`, from the checkpoint to the tokens."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.core.engine_types import GenerationRequest
from openai_bls.core.manifest import BuildError, EngineLoadError
from openai_bls.engines.registry import create_engine
from openai_bls_transformers.runners.runner_choice import RunnerChoice
from openai_bls_transformers.self_test import runner_trials
from tests.engine_contract.support import Recorder, request, run_all

NEW_TOKENS = 12
LENGTHS = (5, 38, 11, 23)
"""Tokens of the prompts: less and more than a window, and than what rope variants call long."""
_TIE = 1e-4
"""Log-probability between two tokens under which either is right."""
_TOLERANCE = 1e-3
"""Of log-probabilities, in float32."""
RUNNERS = {"continuous_batching": "fast", "dynamic_cache": "slower"}
"""How the documentation calls what a runner does."""


@dataclasses.dataclass(frozen=True)
class Generated:
    """Greedy tokens after a prompt with their log-probabilities."""

    tokens: list[int]
    logprobs: list[float]
    margins: list[float] = dataclasses.field(default_factory=list)
    """Distance of each to the next likely token's."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of an architecture."""

    outcome: str
    """`fast`, `slower`, `refused`; or what must not be: `wrong`, `fails at the load`, `fails`."""
    reason: str = ""


def refused(error: BuildError) -> Result:
    """What the page says of a build that is refused: which runner failed, and how."""
    sentence = str(error).partition(": after a prompt")[0].removeprefix("this model cannot be served here: ")
    return Result("refused", sentence.replace(", slower than continuous_batching", ""))


def prompts() -> list[list[int]]:
    """One of each of `LENGTHS`."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, 250, (length,), generator=generator).tolist() for length in LENGTHS]


def requests(first_id: int = 0) -> list[GenerationRequest]:
    """A request for each of `prompts`."""
    return [request(first_id + n, prompt, NEW_TOKENS, logprobs=0) for n, prompt in enumerate(prompts())]


def generated(model: Any, inputs: Mapping[str, Any]) -> Generated:
    """What transformers' `generate` says to a prompt, which `inputs` has as `input_ids`."""
    model.generation_config = GenerationConfig()  # without the end tokens that some classes have or force
    ids = inputs["input_ids"]
    output: Any = model.generate(
        **inputs,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = [logits[0].float().log_softmax(-1).topk(2).values.tolist() for logits in output.logits]
    tokens = output.sequences[0, ids.shape[1] :].tolist()
    return Generated(tokens, [top[0] for top in best], [top[0] - top[1] for top in best])


def expected(checkpoint: Path) -> list[Generated]:
    """What transformers' `generate` says to each of `prompts`, one by one."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    return [generated(model, {"input_ids": torch.tensor([prompt])}) for prompt in prompts()]


def answers(engine: Any, recorder: Recorder, asked: Sequence[GenerationRequest]) -> list[Generated]:
    """The engine's answers to requests that it gets together."""
    tokens = run_all(engine, recorder, asked)
    for one in asked:
        error = recorder.ends[one.request_id].error
        if error is not None:
            raise RuntimeError(error)
    return [
        Generated(found, recorder.logprobs(one.request_id).token_logprobs)
        for found, one in zip(tokens, asked, strict=True)
    ]


def difference(got: Generated, wanted: Generated) -> str:
    """The first one; empty if there is none. Where two tokens tie, either is right, and the rest is not compared."""
    if len(got.tokens) != len(wanted.tokens):
        return f"{len(got.tokens)} tokens instead of {len(wanted.tokens)}"
    for at, (token, right) in enumerate(zip(got.tokens, wanted.tokens, strict=True)):
        if abs(got.logprobs[at] - wanted.logprobs[at]) > _TOLERANCE:
            return f"log-probability {got.logprobs[at]:.4f} instead of {wanted.logprobs[at]:.4f} at token {at}"
        if token != right:
            return "" if wanted.margins[at] < _TIE else f"token {at} is {token} instead of {right}"
    return ""


def compare(checkpoint: Path, repository: Path) -> Result:
    """Build `checkpoint` into `repository`, load it, and compare batched and lone answers with transformers'."""
    try:
        build(BuildOptions(str(checkpoint), repository, "transformers"), lambda line: None)
    except BuildError as error:
        return refused(error)
    recorder, log = Recorder(), RunnerLog()
    try:
        with log:
            engine = create_engine(repository / "tensorrt_llm" / "1", recorder, {"num_threads": "1"})
    except EngineLoadError as error:
        return Result("fails at the load", str(error))
    try:
        got = together_and_alone(engine, recorder, requests())
    except RuntimeError as error:
        return Result("fails", str(error))
    wanted = expected(checkpoint)
    assert len({token for one in wanted for token in one.tokens}) >= 4, "the model says too little to compare"
    return fault(got, wanted) or log.result()


def together_and_alone(engine: Any, recorder: Recorder, asked: Sequence[GenerationRequest]) -> list[Generated]:
    """The engine's answers to requests that it gets together, then to the second one by itself; closes the engine."""
    try:
        together = answers(engine, recorder, asked)
        recorder.forget([asked[1].request_id])
        recorder.steps.clear()
        return [*together, *answers(engine, recorder, asked[1:2])]
    finally:
        engine.close()


def fault(got: Sequence[Generated], wanted: Sequence[Generated]) -> Result | None:
    """What is wrong with `together_and_alone`, by the right answers to the requests; None if nothing is."""
    names = [*(f"batched {n}" for n in range(len(wanted))), "alone"]
    pairs = zip(names, got, [*wanted, wanted[1]], strict=True)
    told = [f"{name}: {different}" for name, found, right in pairs if (different := difference(found, right))]
    return Result("wrong", "; ".join(told)) if told else None


class RunnerLog(logging.Handler):
    """What the engine logs about its runner."""

    def __init__(self) -> None:
        super().__init__()
        self._choice: RunnerChoice | None = None

    def emit(self, record: logging.LogRecord) -> None:
        for argument in record.args or ():
            self._choice = argument if isinstance(argument, RunnerChoice) else self._choice

    def __enter__(self) -> None:
        runner_trials.logger.addHandler(self)
        runner_trials.logger.setLevel(logging.INFO)

    def __exit__(self, *_: object) -> None:
        runner_trials.logger.removeHandler(self)

    def result(self) -> Result:
        """The runner that was chosen, and why it is not the fast one."""
        assert self._choice is not None, "the log does not say which runner runs the model"
        outcome = RUNNERS[self._choice.runner]
        return Result(outcome, self._choice.reason if outcome == "slower" else "")
