"""Golden answers of an engine: recorded at the build, compared at each load on the same kind of device."""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Iterable, Sequence
from typing import Literal

from openai_bls.core.engine import Engine, StepListener
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, SamplingParams, TokenDelta
from openai_bls.core.manifest import AnswerRecord, EngineLoadError

logger = logging.getLogger(__name__)

PROMPTS = 4
NEW_TOKENS = 8
LONGEST = 64
_SEED = 20
WAIT_S = 600.0
"""Seconds for all answers; the first may wait for kernels that are compiled."""
TOLERANCES = {"float32": 0.02, "float16": 0.2, "bfloat16": 0.5}
"""Data type → difference of log-probabilities that is taken for rounding, also where the likeliest token changes."""
_OTHER_TOLERANCE = 0.5


class Answers:
    """Listener that collects the answers to a set of requests."""

    def __init__(self, requests: Iterable[GenerationRequest]) -> None:
        self.token_ids: dict[int, list[int]] = {one.request_id: [] for one in requests}
        self.logprobs: dict[int, list[float]] = {number: [] for number in self.token_ids}
        self.embeddings: dict[int, list[float]] = {}
        self._open = set(self.token_ids)
        self._ended = threading.Event()
        self.failure = ""

    def __call__(self, deltas: Sequence[TokenDelta]) -> None:
        """Take the deltas of a step; those of other requests are passed over."""
        for delta in deltas:
            if delta.request_id not in self._open:
                continue
            self.token_ids[delta.request_id].extend(delta.token_ids)
            if delta.logprobs is not None:
                self.logprobs[delta.request_id].extend(delta.logprobs.token_logprobs)
            if delta.embedding is not None:
                self.embeddings[delta.request_id] = delta.embedding
            if delta.finish_reason is not None:
                self.failure = self.failure or (delta.error or "")
                self._open.discard(delta.request_id)
        if not self._open:
            self._ended.set()

    def wait(self) -> None:
        """Wait for all to end.

        Raises:
            EngineLoadError: one failed, or they take too long.
        """
        if not self._ended.wait(WAIT_S):
            raise EngineLoadError(f"the engine did not answer its self-test within {WAIT_S:.0f} s: see the log")
        if self.failure:
            raise EngineLoadError(f"the engine failed its self-test: {self.failure.rstrip('.')}; see the log")


class Switch:
    """Listener that gives deltas to another one, which may change.

    Args:
        target: the listener at first.
    """

    def __init__(self, target: StepListener) -> None:
        self.target = target

    def __call__(self, deltas: Sequence[TokenDelta]) -> None:
        """Give the deltas on."""
        self.target(deltas)


def prompts(info: EngineInfo) -> list[list[int]]:
    """Prompts of different lengths, the same for the same vocabulary and context."""
    draw = random.Random(_SEED)
    longest = max(1, min(LONGEST, info.max_model_len - NEW_TOKENS))
    lengths = [max(1, longest * (i + 1) // PROMPTS) for i in range(PROMPTS)]
    return [[draw.randrange(info.vocab_size) for _ in range(length)] for length in lengths]


def requests(info: EngineInfo, asked: Sequence[Sequence[int]]) -> list[GenerationRequest]:
    """Greedy requests with the log-probabilities of their tokens; no token ends them. An engine that does not generate
    pools the prompts."""
    if info.task != "generate":
        way: Literal["embed", "classify"] = "embed" if info.task == "embeddings" else "classify"
        return [GenerationRequest(number, list(prompt), 0, pooling=way) for number, prompt in enumerate(asked)]
    return [
        GenerationRequest(
            request_id=number,
            prompt_token_ids=list(prompt),
            max_tokens=max(1, min(NEW_TOKENS, info.max_model_len - len(prompt))),
            sampling=SamplingParams(temperature=0),
            logprobs=0,
        )
        for number, prompt in enumerate(asked)
    ]


def ask(engine: Engine, switch: Switch, asked: Sequence[Sequence[int]]) -> Answers:
    """Answers to prompts, all at once. The engine's listener is `switch`, which gives it back afterwards.

    Raises:
        EngineLoadError: the engine does not answer.
    """
    return ask_requests(engine, switch, requests(engine.info, asked))


def ask_requests(engine: Engine, switch: Switch, todo: Sequence[GenerationRequest]) -> Answers:
    """Answers to requests; see `ask`."""
    answers = Answers(todo)
    before, switch.target = switch.target, answers
    try:
        for request in todo:
            engine.submit(request)
        answers.wait()
    finally:
        switch.target = before
    return answers


def record(engine: Engine, switch: Switch, *, device: str, dtype: str) -> AnswerRecord:
    """Golden answers of a loaded engine.

    Args:
        engine: engine whose listener is `switch`.
        switch: the engine's listener.
        device: `cpu`, or the GPU's name and compute capability.
        dtype: data type of the loaded weights.

    Raises:
        EngineLoadError: the engine does not answer, or with something that is no number.
    """
    asked = prompts(engine.info)
    found = ask(engine, switch, asked)
    numbers = range(len(asked))
    logprobs = [found.logprobs[i] for i in numbers]
    require_numbers(found)
    pooled = [found.embeddings[i] for i in sorted(found.embeddings)]
    return AnswerRecord(device, dtype, asked, [found.token_ids[i] for i in numbers], logprobs, pooled)


def require_numbers(answers: Answers) -> None:
    """Look at log-probabilities.

    Raises:
        EngineLoadError: one is no number.
    """
    if any(math.isnan(value) for row in answers.logprobs.values() for value in row):
        raise EngineLoadError("the engine failed its self-test: log-probabilities are no numbers (NaN)")


def require_same(engine: Engine, switch: Switch, recorded: AnswerRecord, *, device: str) -> None:
    """Compare a loaded engine's answers with those of its build.

    Raises:
        EngineLoadError: they differ by more than rounding; one sentence.
    """
    if device != recorded.device:
        logger.warning(
            "the engine was tested on %s and runs on %s: its answers are not compared", recorded.device, device
        )
        return
    found = ask(engine, switch, recorded.prompts)
    problem = difference(
        recorded, [found.token_ids[i] for i in range(len(recorded.prompts))],
        [found.logprobs[i] for i in range(len(recorded.prompts))],
    )  # fmt: skip
    problem = problem or other_numbers(recorded, [found.embeddings.get(i, []) for i in range(len(recorded.embeddings))])
    if problem:
        raise EngineLoadError(
            f"the engine does not answer as it did at its build ({problem}): check the weights and the version of its "
            "package, or build again with --force"
        )


def difference(recorded: AnswerRecord, token_ids: list[list[int]], logprobs: list[list[float]]) -> str:
    """The first difference beyond rounding; empty if there is none.

    After a token that rounding turned, where two were nearly as likely, the rest of its answer tells nothing.
    """
    tolerance = TOLERANCES.get(recorded.dtype, _OTHER_TOLERANCE)
    for number, (was, now) in enumerate(zip(recorded.token_ids, token_ids, strict=True)):
        if len(was) != len(now):
            return f"answer {number} has {len(now)} tokens instead of {len(was)}"
        values = zip(was, now, recorded.logprobs[number], logprobs[number], strict=True)
        for place, (old, new, old_value, new_value) in enumerate(values):
            if not abs(old_value - new_value) <= tolerance:
                return (
                    f"token {place} of answer {number} has the log-probability {new_value:.3f} instead of "
                    f"{old_value:.3f}"
                )
            if old != new:
                break
    return ""


def other_numbers(recorded: AnswerRecord, embeddings: list[list[float]]) -> str:
    """The first difference beyond rounding of what prompts are pooled into; empty if there is none."""
    tolerance = TOLERANCES.get(recorded.dtype, _OTHER_TOLERANCE)
    for number, (was, now) in enumerate(zip(recorded.embeddings, embeddings, strict=True)):
        if len(was) != len(now):
            return f"answer {number} has {len(now)} numbers instead of {len(was)}"
        room = tolerance * max(1.0, *map(abs, was)) if was else 0.0
        for place, (old, new) in enumerate(zip(was, now, strict=True)):
            if not abs(old - new) <= room:
                return f"number {place} of answer {number} is {new:.3f} instead of {old:.3f}"
    return ""
