"""Learns from a few requests what a target's streams look like and how many words make a prompt of a wanted length."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.driver import make_requests
from benchmarks.events import StreamFailure, find_layout, payload_reader, read_ending
from benchmarks.target import Layout, Plan, Target

_OUTPUT_TOKENS = 8
_ALL = 1_000_000


class ProbeError(Exception):
    """The target does not answer as it should; the message says how."""


@dataclass(frozen=True)
class Probe:
    """What was learned."""

    layout: Layout
    prompt_words: int
    """For about the wanted number of prompt tokens, those of the chat template included."""


def probe(target: Target, prompt_tokens: int) -> Probe:
    """Ask `target` twice, with prompts of different length.

    Raises:
        ProbeError: an error, or a stream that is not complete.
        OSError: the server cannot be reached.
    """
    short, layout = _ask(target, prompt_tokens)
    long, _ = _ask(target, 2 * prompt_tokens)
    per_word = max((long - short) / prompt_tokens, 0.1)
    overhead = short - per_word * prompt_tokens
    return Probe(layout, max(1, round((prompt_tokens - overhead) / per_word)))


def _ask(target: Target, words: int) -> tuple[int, Layout]:
    """The prompt tokens of a request with `words` words, and its stream's layout."""
    plan = Plan(target, 1, 1, words, _OUTPUT_TOKENS, timeout_s=60.0, tail=_ALL)
    [trace], _ = make_requests(plan)
    payload = payload_reader(target)
    try:
        if trace.failure:
            raise StreamFailure(trace.failure)
        ending = read_ending(trace.tail, payload)
        layout = find_layout(trace.tail, payload)
    except StreamFailure as failure:
        raise ProbeError(f"{target.api}: {failure}") from None
    if ending.prompt_tokens is None:
        raise ProbeError(f"{target.api}: the stream has no usage, although it was asked for")
    return ending.prompt_tokens, layout
