"""What drafts may cost, by steps on a simulated device: right ones come, wrong ones take next to no time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from openai_bls.embedded.speculation.draft_budget import DraftBudget
from openai_bls.embedded.speculation.draft_model import passes
from openai_bls.embedded.speculation.drafter import Drafter, SpeculationConfig

PLAIN, WIDER, GUESS, HOST, READ = 3.74, 4.2, 0.9, 0.95, 3.0
"""Milliseconds, as measured on a GPU: a step of a 7B, one with drafts, a guess of a 0.5B, what does not overlap, and
its reading of 512 tokens."""
AT_ONCE = 512
MOST = 8


@dataclass
class Text:
    """A request and how well its text can be drafted."""

    odds: Callable[[int], float]
    """Share of the draft model's guesses that are right, by the number of tokens so far."""
    tokens: int = 256
    prompt: int = 256
    misleading: float = 0.0
    """Share of the places at which something is found to copy, which is always wrong."""


class Stream:
    """A sequence with its drafter."""

    def __init__(self, config: SpeculationConfig, text: Text, number: int) -> None:
        first = number << 20  # no two tokens are the same: nothing is looked up
        self.text = text
        self.drafter = Drafter(config, range(first, first + text.prompt), max_tokens=4096)
        self.unread = len(self.drafter.recent_ids)
        self.count = 0
        self.accepted = 0

    @property
    def left(self) -> int:
        return self.text.tokens - self.count

    def take(self, tokens: int) -> None:
        self.drafter.observe([-self.count - i for i in range(tokens)])
        self.count += tokens


def model_of(length: int) -> Any:
    return SimpleNamespace(pass_seconds=0.0, max_length=length)


class Device:
    """An engine whose steps overlap, in virtual time."""

    def __init__(self) -> None:
        self.model = model_of(1 << 20)
        self.config = SpeculationConfig(MOST, 4, 4, 8, self.model)
        self.budget = self.config.budget
        self.random = random.Random(0)
        self.now = 0.0
        self.requests = 0

    def answer(self, texts: Sequence[Text]) -> float:
        """Answer requests that begin together; returns the time that this takes without drafts over that with them."""
        live = []
        for text in texts:
            self.requests += 1
            live.append(Stream(self.config, text, self.requests))
        began, plain, in_flight = self.now, 0.0, False
        self.budget.begin(self.now, len(live), 0)
        while live:
            waits = in_flight and any(self.would_draft(one) for one in live)
            if waits:
                plain += self.end(live, PLAIN)
                live = [one for one in live if one.left]
                in_flight = False
            self.budget.begin(self.now, len(live), len(live))
            if waits:
                self.budget.note_wait()
            if not in_flight and self.draft(live):
                plain += self.verify(live)
            elif in_flight:
                plain += self.end(live, PLAIN)
            else:
                self.now += HOST
                in_flight = True
            live = [one for one in live if one.left]
        return plain / (self.now - began)

    def would_draft(self, one: Stream) -> bool:
        return self.misleads(one) > 0 or one.drafter.wants_guesses(1) > 0

    def misleads(self, one: Stream) -> int:
        if one.text.misleading <= random.Random(one.count).random():
            return 0
        return one.drafter._copying.length(MOST, one.text.prompt + one.count)

    def end(self, live: Sequence[Stream], seconds: float) -> float:
        """Let a step without drafts end; returns its time."""
        self.now += seconds
        self.budget.note_tokens(len(live))
        for one in live:
            one.take(1)
        return PLAIN

    def draft(self, live: Sequence[Stream]) -> bool:
        wanted: list[tuple[Stream, int]] = []
        for one in live:
            if count := self.misleads(one):
                one.drafter.propose([-1] * count, count, set())
                self.budget.note_draft()
            elif count := one.drafter.wants_guesses(min(MOST, one.left - 1)):
                wanted.append((one, count))
        if wanted:
            self.guess(wanted)
        return any(one.drafter.draft for one in live)

    def guess(self, wanted: Sequence[tuple[Stream, int]]) -> None:
        room, ready = AT_ONCE, []
        for one, count in wanted:
            read = min(room, one.unread)
            one.unread -= read
            room -= read
            if not one.unread:
                ready.append((one, count))
        most = passes([count for _, count in ready])
        seconds = READ * (room < AT_ONCE) + GUESS * most
        if ready and room == AT_ONCE:
            self.model.pass_seconds = GUESS
        self.now += seconds
        self.budget.note_guesses(seconds)
        for one, count in ready:
            one.drafter.propose([-1] * min(count, most), count, set(), by_model=True)
            self.budget.note_draft()

    def verify(self, live: Sequence[Stream]) -> float:
        self.now += HOST + WIDER
        new = 0
        for one in live:
            by_model = one.drafter._pace is one.drafter._modelling
            count, right = len(one.drafter.draft), 0
            while by_model and right < count and self.random.random() < one.text.odds(one.count + right):
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


def often(odds: float, **more: Any) -> Text:
    return Text(lambda _: odds, **more)


@pytest.mark.parametrize("odds", [0.0, 0.2, 0.4, 0.5])
@pytest.mark.parametrize("streams", [1, 4, 8])
def test_wrong_guesses_cost_next_to_nothing(odds: float, streams: int) -> None:
    first, mean = gain(*[often(odds)] * streams)
    assert first > 0.97
    assert mean > 0.98


@pytest.mark.parametrize(
    "texts",
    [
        [often(0.0, tokens=64, prompt=4000)],
        [often(0.0, tokens=50)],
        [often(0.0, misleading=0.5)],
        [often(0.0, misleading=0.5)] * 8,
        [often(0.9), *[often(0.0)] * 7],
        [Text(lambda place: float(place // 16 % 2), tokens=512)],
        [Text(lambda place: float(place // 16 % 2 == 0), tokens=512)],
        [Text(lambda place: float(place < 64), tokens=1024)],
    ],
)
def test_neither_do_others(texts: Sequence[Text]) -> None:
    assert gain(*texts, rounds=10)[1] > 0.97


def test_what_right_guesses_have_brought_is_not_spent_for_long() -> None:
    first, mean = gain(often(0.0), before=[often(1.0)])
    assert first > 0.95
    assert mean > 0.975


@pytest.mark.parametrize(
    ("odds", "alone", "together"), [(0.7, 1.05, 0.98), (0.8, 1.3, 0.98), (0.9, 1.65, 1.4), (1.0, 2.5, 2.3)]
)
def test_right_guesses_pay(odds: float, alone: float, together: float) -> None:
    assert gain(often(odds))[1] > alone
    assert gain(often(odds), before=[often(0.0)])[1] > 0.9 * alone
    assert gain(*[often(odds)] * 8)[1] > together


def test_of_a_long_prompt_only_the_end_is_read() -> None:
    assert gain(often(0.9, prompt=4000))[1] > 1.5


def test_guesses_are_tried_again_where_the_text_changes() -> None:
    assert gain(Text(lambda place: float(place > 200), tokens=1000))[1] > 1.8


def test_nothing_is_drafted_before_a_step_is_measured() -> None:
    budget = DraftBudget()
    for now, overdrawn in ((1.0, True), (1.5, True), (2.0, False)):
        budget.begin(now, 1, 1)
        assert budget.copying.is_overdrawn is overdrawn
        budget.note_tokens(int(now > 1.0))
