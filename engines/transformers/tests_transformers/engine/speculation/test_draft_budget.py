"""What drafts may cost, by steps on a simulated device: right ones come, wrong ones take next to no time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from openai_bls_transformers.speculation.draft_budget import DraftBudget
from openai_bls_transformers.speculation.drafter import Drafter, SpeculationConfig

PLAIN, WIDER, HOST = 3.74, 4.2, 0.95
"""Milliseconds, as measured on a GPU: a step of a 7B, one with drafts, and what does not overlap."""
MOST = 8


@dataclass
class Text:
    """A request and how well its text can be drafted."""

    odds: Callable[[int], float]
    """Share of the copied tokens that are right, by the number of tokens so far."""
    tokens: int = 256
    found: float = 1.0
    """Share of the places at which something is found to copy."""


class Stream:
    """A sequence with its drafter."""

    def __init__(self, config: SpeculationConfig, text: Text) -> None:
        self.text = text
        self.drafter = Drafter(config, [-1])  # no two tokens are the same: nothing is looked up
        self.count = 0

    @property
    def left(self) -> int:
        return self.text.tokens - self.count

    @property
    def found(self) -> int:
        """Tokens that are found to copy."""
        if self.text.found <= random.Random(self.count).random():
            return 0
        return self.drafter._copying.length(min(MOST, self.left - 1), 1 + self.count)

    def take(self, tokens: int) -> None:
        self.drafter.observe(range(self.count, self.count + tokens))
        self.count += tokens


class Device:
    """An engine whose steps overlap, in virtual time."""

    def __init__(self) -> None:
        self.config = SpeculationConfig(MOST, 4, 4, 8)
        self.budget = self.config.budget
        self.random = random.Random(0)
        self.now = 0.0

    def answer(self, texts: Sequence[Text]) -> float:
        """Answer requests that begin together; returns the time that this takes without drafts over that with them."""
        live = [Stream(self.config, text) for text in texts]
        began, plain, in_flight = self.now, 0.0, False
        self.budget.begin(self.now, len(live), 0)
        while live:
            waits = in_flight and any(one.found for one in live)
            if waits:
                plain += self.end(live)
                live = [one for one in live if one.left]
                in_flight = False
            self.budget.begin(self.now, len(live), len(live))
            if waits:
                self.budget.note_drafts()
            if not in_flight and self.draft(live):
                plain += self.verify(live)
            elif in_flight:
                plain += self.end(live)
            else:
                self.now += HOST
                in_flight = True
            live = [one for one in live if one.left]
        return plain / (self.now - began)

    def end(self, live: Sequence[Stream]) -> float:
        """Let a step without drafts end; returns its time."""
        self.now += PLAIN
        self.budget.note_tokens(len(live))
        for one in live:
            one.take(1)
        return PLAIN

    def draft(self, live: Sequence[Stream]) -> bool:
        for one in live:
            if count := one.found:
                one.drafter.propose([-1] * count, count, set())
                self.budget.note_drafts()
        return any(one.drafter.draft for one in live)

    def verify(self, live: Sequence[Stream]) -> float:
        self.now += HOST + WIDER
        new = 0
        for one in live:
            count, right = len(one.drafter.draft), 0
            while right < count and self.random.random() < one.text.odds(one.count + right):
                right += 1
            one.drafter.settle(right)
            one.take(min(right + 1, one.left))
            new += right + 1
        self.budget.note_tokens(new)
        return PLAIN * new / len(live)


def gain(*texts: Text, before: Sequence[Text] = (), rounds: int = 8) -> tuple[float, float]:
    """(rate of the first round, mean rate of all) with drafts over that without."""
    device = Device()
    if before:
        device.answer(before)
    found = [device.answer(texts) for _ in range(rounds)]
    return found[0], rounds / sum(1 / one for one in found)


def often(odds: float, found: float = 1.0) -> Text:
    return Text(lambda _: odds, found=found)


@pytest.mark.parametrize("odds", [0.0, 0.1, 0.2, 0.3])
@pytest.mark.parametrize("streams", [1, 4, 8])
@pytest.mark.parametrize("found", [0.5, 1.0])
def test_wrong_copies_cost_next_to_nothing(odds: float, streams: int, found: float) -> None:
    first, mean = gain(*[often(odds, found)] * streams)
    assert first > 0.95
    assert mean > 0.97


@pytest.mark.parametrize(
    "texts",
    [
        [Text(lambda _: 0.0, tokens=50)],
        [often(0.9), *[often(0.0)] * 7],
        [Text(lambda place: float(place // 16 % 2), tokens=512)],
        [Text(lambda place: float(place // 16 % 2 == 0), tokens=512)],
        [Text(lambda place: float(place < 64), tokens=1024)],
    ],
)
def test_neither_do_others(texts: Sequence[Text]) -> None:
    assert gain(*texts, rounds=10)[1] > 0.97


def test_what_right_copies_have_brought_is_not_spent_for_long() -> None:
    first, mean = gain(often(0.0), before=[often(1.0)])
    assert first > 0.95
    assert mean > 0.975


@pytest.mark.parametrize(
    ("odds", "alone", "together"), [(0.7, 1.5, 1.0), (0.8, 2.2, 1.2), (0.9, 3.3, 1.7), (1.0, 5.5, 5.5)]
)
def test_right_copies_pay(odds: float, alone: float, together: float) -> None:
    assert gain(often(odds))[1] > alone
    assert gain(often(odds), before=[often(0.0)])[1] > 0.9 * alone
    assert gain(*[often(odds)] * 8)[1] > together


def test_copies_are_tried_again_where_the_text_changes() -> None:
    assert gain(Text(lambda place: float(place > 200), tokens=1000))[1] > 1.8


def test_nothing_is_drafted_before_a_step_is_measured() -> None:
    budget = DraftBudget()
    for now, overdrawn in ((1.0, True), (1.5, True), (2.0, False)):
        budget.begin(now, 1, 1)
        assert budget.is_overdrawn is overdrawn
        budget.note_tokens(int(now > 1.0))
