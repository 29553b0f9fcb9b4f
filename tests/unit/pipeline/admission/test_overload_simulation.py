"""Goodput and fairness of the admission under overload, by simulation in virtual time."""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import replace

import pytest

from openai_bls.core.keys.key_limits import KeyLimits
from tests.unit.pipeline.admission.simulation import Need, Pace, World

WINDOW = (20.0, 70.0)
SECONDS = 50.0
"""Of that."""
Needs = Callable[[World], Need]


def lognormal(world: World, mean: float, sigma: float, most: int) -> int:
    return max(1, min(most, int(world.random.lognormvariate(math.log(mean) - sigma**2 / 2, sigma))))


def constant(rate: float) -> Callable[[float], float]:
    return lambda now: rate


def always(need: Need) -> Needs:
    return lambda world: need


def fixed(timeout_s: float) -> Needs:
    return always(Need(timeout_s=timeout_s))


def stream(key: str) -> Needs:
    return lambda world: Need(key, 500, world.random.randint(32, 96), 96)


def varied(timeout_s: float, sigma: float = 0.8, prompt: float = 200) -> Needs:
    def need(world: World) -> Need:
        tokens = lognormal(world, prompt, sigma, 4000), lognormal(world, 64, sigma, 1000)
        return Need("", *tokens, max_tokens=1000, timeout_s=timeout_s)

    return need


def two_kinds(one: Need, other: Need) -> Needs:
    return lambda world: one if world.random.random() < 0.5 else other


def noisy_step(seed: int) -> Callable[[float, int], float]:
    numbers = random.Random(seed)
    return lambda now, running: 0.02 * numbers.lognormvariate(0, 0.6)


STEADY = Pace()
CROWDED = Pace(32, lambda now, running: 0.01 + 0.002 * running)
SCENARIOS: dict[str, tuple[Pace, Needs]] = {
    "a steady engine": (STEADY, fixed(3)),
    "timeouts that are just enough": (STEADY, fixed(1.8)),
    "answers of any length": (STEADY, varied(4)),
    "answers of any length, short timeouts": (STEADY, varied(2)),
    "a few very long answers": (STEADY, varied(5, sigma=1.2)),
    "long prompts with one token and long answers": (
        STEADY,
        two_kinds(Need("", 1000, 1, 1, timeout_s=4), Need("", 50, 64, 64, timeout_s=4)),
    ),
    "steps of any length": (Pace(step_s=noisy_step(3)), fixed(3)),
    "an engine that drifts": (Pace(step_s=lambda now, running: 0.02 * (1 + 0.7 * math.sin(now / 5))), fixed(4)),
    "three times slower at once": (Pace(step_s=lambda now, running: 0.02 if now < 15 else 0.06), fixed(5)),
    "three times faster at once": (Pace(step_s=lambda now, running: 0.06 if now < 15 else 0.02), fixed(5)),
    "a minute of standing still": (Pace(step_s=lambda now, running: 60 if 5 < now < 6 else 0.02), fixed(3)),
    # An answer takes 4.7 s then.
    "too slow with a full batch": (CROWDED, fixed(4)),
    "answers of any length, too slow with a full batch": (CROWDED, varied(6)),
    "prompts that take most of the time": (Pace(8, lambda now, running: 0.01), varied(3, prompt=1000)),
}


def window(name: str) -> tuple[float, float]:
    """Begin and end of what counts: longer where chance has a greater part."""
    begin = 70.0 if name == "a minute of standing still" else WINDOW[0]
    return begin, begin + (3 if name.startswith(("answers", "a few")) else 1) * SECONDS


def world_of(name: str, factor: float = 0) -> World:
    """The scenario's engine, with so many times the requests that it can answer."""
    pace, need = SCENARIOS[name]
    world = World(pace, window(name))
    if factor:
        world.arrivals(need, constant(factor * capacity(name)))
    return world


@functools.cache
def capacity(name: str) -> float:
    """Answers per second where nothing has a timeout."""
    world = world_of(name)
    pace, need = SCENARIOS[name]
    for _ in range(2 * pace.batch):
        world.client(lambda world: replace(need(world), timeout_s=math.inf))
    begin, end = world.window
    return world.run().answers() / (end - begin)


@pytest.mark.parametrize("name", SCENARIOS)
def test_goodput_stays_near_its_peak(name: str) -> None:
    answers = {factor: world_of(name, factor).run().answers() for factor in (2, 5, 10, 30)}
    begin, end = window(name)
    assert max(answers.values()) > 0.85 * capacity(name) * (end - begin)
    assert min(answers.values()) >= 0.9 * max(answers.values()), answers


def test_goodput_of_bursts() -> None:
    world = world_of("a steady engine")
    # Half of the time nothing comes.
    world.arrivals(fixed(3), lambda now: 120 if now % 10 < 5 else 1)
    # What is there at the end of a burst goes on for a timeout.
    assert world.run().answers() > 0.9 * capacity("a steady engine") * SECONDS / 2


@pytest.mark.parametrize("obedient", [True, False])
def test_goodput_with_clients_that_try_again(*, obedient: bool) -> None:
    world = world_of("a steady engine")
    for _ in range(5 * STEADY.batch):
        world.client(fixed(3), obedient=obedient)
    assert world.run().answers() > 0.9 * capacity("a steady engine") * SECONDS


def test_tight_and_loose_deadlines_of_keys_with_weights() -> None:
    limits = {"hurried": KeyLimits(weight=1), "patient": KeyLimits(weight=2), "batch": KeyLimits(weight=0.5)}
    tokens = {}
    for factor in (2, 10, 30):
        world = World(STEADY, WINDOW, limits)
        for need in (
            Need("hurried", 100, 32, 64, timeout_s=2),
            Need("patient", 300, 96, 128, timeout_s=20),
            Need("batch", 1000, 128, 128),
        ):
            world.arrivals(always(need), constant(4.0 * factor))
        world.run()
        tokens[factor] = sum(seen.tokens for seen in world.seen.values())
        shares = {key: world.seen[key].tokens / limits[key].weight for key in limits}
        # The hurried one can hardly wait.
        assert min(shares.values()) > 0.5 * max(shares.values()), shares
    assert min(tokens.values()) >= 0.9 * max(tokens.values()), tokens


@pytest.mark.parametrize("batch", [64, 256])
def test_500_streams_of_one_key_do_not_double_the_time_to_first_token_of_another(batch: int) -> None:
    times = []
    for streams in (0, 500):
        world = World(Pace(batch, lambda now, running: 0.03, prefill_s=0, first_s=0.1), (20, 120))
        for key, count in (("many", streams), ("one", 1)):
            for _ in range(count):
                world.client(stream(key))
        times.append(world.run().seen["one"].first_s)
    alone, beside = times
    for of in (statistics.median, lambda seconds: statistics.quantiles(seconds, n=10)[-1]):
        assert of(beside) < 2 * of(alone)


def test_nothing_starves() -> None:
    world = World(STEADY, WINDOW)
    rates = {"one": 1.0, "two": 0.2, "flood": 300.0}
    for key, rate in rates.items():
        world.arrivals(always(Need(key, 200)), constant(rate))
    world.run()
    for key in ("one", "two"):
        assert set(world.seen[key].outcomes) == {"answered"}
        # A few answers of the others, which end 12 times per second.
        assert max(world.seen[key].first_s) < 2
    assert world.seen["flood"].outcomes["queue_full"]
