"""Prompts that an engine has and has not read, which no key may have many of where there are several."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.errors import ApiError
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.admission.admission import Admission
from openai_bls.pipeline.admission.ticket import Ticket

STEP = 512
PLACES = 64


class Engine:
    """Prompts in the order of their coming; what reads them is the test."""

    def __init__(self, *, several: bool = True) -> None:
        self.unread: list[Request] = []
        self.begun: list[Request] = []
        self.order: list[str] = []
        """Keys of the prompts in the order in which they were read."""
        self.admission = Admission(
            lambda: PLACES,
            OpenAiBlsSettings(max_waiting_requests=10_000, max_waiting_tokens=10**9),
            several_keys=lambda: several,
            step_tokens=lambda: STEP,
        )

    def ask(self, key: str, tokens: int, count: int = 1) -> Request:
        return Request(self, self.admission.ticket(key, tokens * count, 10, count), tokens)

    def read(self) -> None:
        request = self.unread.pop(0)
        self.begun.append(request)
        self.order.append(request.ticket.key)
        request.ticket.sequence_began()

    def finish(self) -> None:
        self.begun.pop(0).ended()

    def check(self) -> None:
        of_key: Counter[str] = Counter()
        prompts: Counter[str] = Counter()
        for request in self.unread:
            of_key[request.ticket.key] += request.tokens
            prompts[request.ticket.key] += 1
        for key, tokens in of_key.items():
            assert tokens <= 3 * STEP or prompts[key] == 1


class Request:
    """A job of sequences that have prompts of one length."""

    def __init__(self, engine: Engine, ticket: Ticket, tokens: int) -> None:
        self.engine = engine
        self.ticket = ticket
        self.tokens = tokens
        self.left = ticket.sequences
        self.submitted = 0
        ticket.enter(self)

    def submit(self, count: int) -> None:
        self.submitted += count
        self.engine.unread += [self] * count

    def fail(self, error: ApiError) -> None:
        raise AssertionError(error)

    def ended(self) -> None:
        self.left -= 1
        if self.left:
            self.ticket.sequence_ended()
        else:
            self.ticket.leave(10, done=True)

    def cancel(self) -> None:
        self.engine.unread = [one for one in self.engine.unread if one is not self]
        self.engine.begun = [one for one in self.engine.begun if one is not self]
        self.ticket.leave(0, done=False)


def test_long_prompts_of_one_key_are_not_all_ahead_of_another_s() -> None:
    engine = Engine()
    alice = [engine.ask("alice", 400) for _ in range(50)]
    engine.ask("alice", 400, 20)
    assert [request.submitted for request in alice[:4]] == [1, 1, 1, 0]
    for _ in range(8):
        # One after another, each as soon as the one before it is read.
        before = engine.order.count("bob")
        engine.ask("bob", 10)
        while engine.order.count("bob") == before:
            engine.read()
            engine.check()
        assert len(engine.order) <= 4 * (before + 1)
    while engine.unread:
        engine.read()
        while len(engine.begun) > PLACES // 2:
            engine.finish()
    assert Counter(engine.order) == {"alice": 70, "bob": 8}


def test_a_prompt_of_any_length_is_read_and_a_lone_key_has_the_engine_to_itself() -> None:
    engine = Engine()
    engine.ask("alice", 100 * STEP)
    engine.ask("alice", 1)
    assert len(engine.unread) == 1
    engine.read()
    assert len(engine.unread) == 1
    lone = Engine(several=False)
    for _ in range(PLACES):
        lone.ask("", STEP)
    assert len(lone.unread) == PLACES


names = st.sampled_from(["ask", "ask", "read", "finish", "cancel"])
events = st.tuples(names, st.sampled_from("abc"), st.integers(1, 3 * STEP), st.integers(1, 8))


@given(st.lists(events, max_size=80), st.randoms())
def test_everything_is_read_whatever_happens(events: list[tuple[str, str, int, int]], chance: Random) -> None:
    engine = Engine()
    live: list[Request] = []
    for name, key, tokens, count in events:
        if name == "ask":
            live.append(engine.ask(key, tokens, count))
        elif name == "read" and engine.unread:
            engine.read()
        elif name == "finish" and engine.begun:
            engine.finish()
        elif name == "cancel" and (open_ones := [one for one in live if one.left]):
            one = chance.choice(open_ones)
            one.left = 0
            one.cancel()
        engine.check()
    while engine.unread or engine.begun:
        while engine.unread:
            engine.read()
            engine.check()
        engine.finish()
    assert not [one for one in live if one.left]
    assert (engine.admission.running, engine.admission.waiting, engine.admission._prompts.keys) == (0, 0, [])
