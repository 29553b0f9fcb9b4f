from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.engine_types import GenerationRequest, Logprobs, PromptLogprobs
from openai_bls.core.errors import EngineError, OverloadedError
from openai_bls.core.logprobs import TokenLogprob
from openai_bls.output.stops import StopStrings
from openai_bls.pipeline.generation.echo import PART_COST, Echo, EchoingSequence
from openai_bls.pipeline.generation.generation import Generation
from openai_bls.pipeline.slices import Turns
from tests.prompt_logprobs import packed, unpacked
from tests.unit.core_support import FakeEngineClient, tiny_detokenizers, token_ids
from tests.unit.pipeline.generation.test_generation import Recorder

DETOKENIZERS = tiny_detokenizers()


def of_a_prompt(length: int, top: int) -> Logprobs:
    """Log-probabilities that tell places apart."""
    places = range(1, length)
    return Logprobs(
        [-float(at) for at in places],
        [[at % 50 + k for k in range(top)] for at in places],
        [[-at - k / 100 for k in range(top)] for at in places],
    )


class Echoing:
    """A started generation whose prompt is part of its answers.

    Args:
        prompt: token ids.
        logprobs: number of likeliest tokens; None wants no log-probabilities.
        choices: number of its sequences.
        stop: stop strings.
        turns: turns at the event loop, and whose they are.
    """

    def __init__(
        self,
        prompt: list[int],
        logprobs: int | None,
        choices: int = 1,
        stop: tuple[str, ...] = (),
        turns: tuple[Turns, str] | None = None,
    ) -> None:
        self.prompt, self.top = prompt, logprobs
        self.engine, self.writer = FakeEngineClient(), Recorder()
        self.costs = [0]
        taken, key = turns or (Turns(), "")
        echo = Echo(prompt, DETOKENIZERS.new(False), partial(taken.take, key=key), logprobs=logprobs is not None)
        stops = StopStrings(stop, DETOKENIZERS)
        request = partial(GenerationRequest, prompt_token_ids=prompt, max_tokens=9)
        sequences: list[Any] = [
            EchoingSequence(
                index,
                request(self.engine.new_request_id(), logprobs=logprobs, prompt_logprobs=None if index else logprobs),
                stops.detokenizer(prompt),
                self.writer,
                stops=stops.matcher(),
                marks=stops.marks,
                echo=echo,
            )
            for index in range(choices)
        ]
        self.generation = Generation(self.engine, sequences, self.writer, [len(prompt)], lambda *_: None)
        self.generation.start()

    def deliver(self, at: int, tokens: str, reason: str | None = None, *, first: bool = False) -> None:
        """A delta of sequence number `at`; the first one of the first sequence has what is told of the prompt."""
        found = None
        if first and not at and self.top is not None:
            found = packed(of_a_prompt(len(self.prompt), self.top))
        self.engine.deliver(at, tokens, reason, prompt_logprobs=found)

    async def turn(self) -> None:
        """One turn of the event loop, and what it cost."""
        seen = len(self.writer.events)
        await asyncio.sleep(0)
        new = self.writer.events[seen:]
        self.costs.append(sum(len(token.top) + 8 for event in new if event[0] == "logprobs" for token in event[2]))

    async def end(self) -> list[int]:
        """Wait for the end; what each turn of the event loop cost."""
        while not self.writer.over:
            await self.turn()
        return self.costs

    def tokens(self, index: int) -> list[TokenLogprob]:
        """The log-probabilities of a choice."""
        events = self.writer.events
        return [token for event in events if event[:2] == ("logprobs", index) for token in event[2]]


PIECES = st.lists(st.sampled_from(["a", "b", "é", "中", "<|im_start|>", "hello"]), min_size=1, max_size=60)


@given(PIECES, st.sampled_from([None, 0, 1, 20, 300]), st.integers(1, 3), st.data())
def test_an_echo_in_parts_is_the_prompt(pieces: list[str], top: int | None, choices: int, data: st.DataObject) -> None:
    prompt = token_ids("".join(pieces))
    text = DETOKENIZERS.decode(prompt)

    async def run() -> None:
        echoing = Echoing(prompt, top, choices)
        # Others may begin before the first one, which brings the log-probabilities of all.
        for at in data.draw(st.permutations(range(choices))):
            echoing.deliver(at, "x", first=True)
            for _ in range(data.draw(st.integers(0, 2))):
                await echoing.turn()
        for at in data.draw(st.permutations(range(choices))):
            for _ in range(data.draw(st.integers(0, 3))):
                await echoing.turn()
            echoing.deliver(at, "yz", "length")
        # A part, or the new tokens.
        assert max(await echoing.end()) <= PART_COST
        for index in range(choices):
            assert echoing.writer.content(index) == text + "xyz"
            if top is None:
                continue
            found = echoing.tokens(index)
            assert [token.token_id for token in found] == prompt + token_ids("xyz")
            given = unpacked(packed(of_a_prompt(len(prompt), top)))
            assert [token.logprob for token in found[: len(prompt)]] == [None, *given.token_logprobs]
            tops = [list(zip(*both, strict=True)) for both in zip(given.top_token_ids, given.top_logprobs, strict=True)]
            assert [token.top for token in found[: len(prompt)]] == [[], *tops]
            # A token's text begins where it says; of a character in several tokens only the last one has text.
            offsets = [len(DETOKENIZERS.decode(prompt[:at]).removesuffix("\ufffd")) for at in range(len(prompt))]
            assert [token.offset for token in found] == [*offsets, len(text), len(text) + 1, len(text) + 2]
        usage = echoing.writer.events[-1][1]
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), 3 * choices)

    asyncio.run(run())


async def test_a_turn_costs_no_more_for_a_longer_prompt() -> None:
    most = []
    for length in (2_000, 4_000, 8_000):
        echoing = Echoing(token_ids("a" * length), 20)
        echoing.deliver(0, "x", "length", first=True)
        costs = await echoing.end()
        assert len(costs) > length * 28 // PART_COST
        most.append(max(costs))
    assert most[0] == most[1] == most[2] <= PART_COST


async def test_an_echo_waits_for_one_part_of_another_key() -> None:
    turns = Turns()
    loud = Echoing(token_ids("a" * 2_000), 20, choices=8, turns=(turns, "alice"))
    for at in range(8):
        loud.deliver(at, "x", "length", first=True)
    quiet = Echoing(token_ids("ab"), 20, turns=(turns, "bob"))
    quiet.deliver(0, "x", "length", first=True)
    # Its own two turns, and one of the other key before each.
    assert len(await quiet.end()) - 1 <= 4
    assert not loud.writer.over
    await loud.end()


async def test_nothing_follows_a_cancelled_echo() -> None:
    echoing = Echoing(token_ids("a" * 2_000), 20)
    echoing.deliver(0, "x", first=True)
    await asyncio.sleep(0)
    before = len(echoing.writer.events)
    assert before
    echoing.generation.cancel()
    for _ in range(30):
        await asyncio.sleep(0)
    assert len(echoing.writer.events) == before


async def test_an_engine_that_is_lost_fails_an_echo_at_once() -> None:
    echoing = Echoing(token_ids("a" * 2_000), 20)
    echoing.deliver(0, "x", first=True)
    await asyncio.sleep(0)
    echoing.deliver(0, "", "cancelled")
    assert isinstance(echoing.writer.events[-1][1], OverloadedError)
    await asyncio.sleep(0)
    assert echoing.writer.over


@pytest.mark.parametrize("count", [0, 3])
async def test_log_probabilities_of_another_prompt_fail_the_request(count: int) -> None:
    echoing = Echoing(token_ids("ab"), 1)
    echoing.engine.deliver(0, "x", prompt_logprobs=packed(of_a_prompt(count, 1)))
    await echoing.end()
    assert isinstance(echoing.writer.events[-1][1], EngineError)


async def test_rows_that_are_cut_fail_the_request() -> None:
    echoing = Echoing(token_ids("abc"), 1)
    echoing.engine.deliver(0, "x", prompt_logprobs=PromptLogprobs(1, [bytes(18), bytes(6)]))
    await echoing.end()
    assert isinstance(echoing.writer.events[-1][1], EngineError)


async def test_nothing_follows_a_stop_string_that_came_during_the_echo() -> None:
    echoing = Echoing(token_ids("a" * 2_000), None, stop=("END",))
    for piece in ("xE", "ND", "more"):
        echoing.deliver(0, piece, first=piece == "xE")
    await echoing.end()
    assert echoing.writer.content() == "a" * 2_000 + "x"
    assert echoing.writer.reasons() == ["stop"]
    assert echoing.engine.cancelled == [1]
