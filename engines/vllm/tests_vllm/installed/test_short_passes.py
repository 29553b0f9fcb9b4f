"""Short passes by the real vLLM's scheduler, held against its own steps."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from openai_bls_vllm.scheduling.pass_size import SHORT_PROMPT
from tests.paths import DEMO
from tests_vllm.vllm_python import output_of

pytestmark = pytest.mark.timeout(1800)

Steps = list[dict[str, int]]


def drawn(seed: int) -> tuple[int, list[tuple[int, int]]]:
    """A case: the size of a pass, and prompts by the step before which they come; half of the cases have long ones."""
    draw = random.Random(seed)
    longest = SHORT_PROMPT if seed % 2 else 1900
    prompts = [(draw.choice((0, 0, 0, 1, 2, 5)), draw.randint(1, draw.choice((40, longest)))) for _ in range(40)]
    return draw.choice((64, 200, 512)), sorted(prompts)


def test_steps(warm_python: str) -> None:
    cases = [drawn(seed) for seed in range(24)]
    script = Path(__file__).with_name("short_passes.py")
    output = output_of(warm_python, script, str(DEMO), given=json.dumps(cases))
    sooner = 0
    for (size, prompts), (short, own) in zip(cases, json.loads(output), strict=True):
        assert read(short) == read(own) == [tokens for _, tokens in prompts]
        first, first_of_own = first_tokens(short, prompts), first_tokens(own, prompts)
        # In the order of coming, and no prompt is read in parts that vLLM reads at once.
        assert first == sorted(first)
        if max(tokens for _, tokens in prompts) <= SHORT_PROMPT:
            for step in short:
                assert sum(tokens for tokens in step.values() if tokens > 1) < size + SHORT_PROMPT + len(prompts)
            sooner += sum(short[0].values()) < sum(own[0].values())
        assert first[0] == first_of_own[0]
    assert sooner


def read(steps: Steps) -> list[int]:
    """Tokens of each prompt that were read: all that was scheduled, less the steps that gave further tokens."""
    count = 1 + max(int(name) for step in steps for name in step)
    taken = [[step[str(number)] for step in steps if str(number) in step] for number in range(count)]
    return [sum(each) - 2 for each in taken]


def first_tokens(steps: Steps, prompts: list[tuple[int, int]]) -> list[int]:
    """The step at whose end each prompt is read."""
    found = []
    for number, (_, tokens) in enumerate(prompts):
        left = tokens
        for at, step in enumerate(steps):
            left -= step.get(str(number), 0)
            if left <= 0:
                found.append(at)
                break
    return found
