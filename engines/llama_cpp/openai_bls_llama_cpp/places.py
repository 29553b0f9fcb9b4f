"""Places of sequences in llama.cpp's memory, and what of a prompt they hold already."""

from __future__ import annotations

from collections.abc import Sequence

from openai_bls_llama_cpp.model import LlamaModel

_WORTH_SHARING = 16
"""Tokens of a common beginning below which it is computed again: a place of its own is worth more."""
_BLOCK = 64
_MOVED_PER_STEP = 512
"""Tokens whose move costs no more than a gap between running sequences costs in a step: all weights are read again."""


class _Place:
    """One sequence of llama.cpp's memory."""

    __slots__ = ("key", "number", "token_ids", "used", "used_at")

    def __init__(self, number: int) -> None:
        self.key = number
        """Index among the places."""
        self.number = number
        """Number of the sequence, which changes where places swap what they hold."""
        self.token_ids: list[int] = []
        """Tokens that are computed."""
        self.used = False
        self.used_at = 0


class Places:
    """Places, each of a running sequence or with what the last one left.

    Args:
        memory: the model, which moves what it has computed.
        count: number of places.
        sharing: prompts take over the beginning that they have in common with what is there.
    """

    def __init__(self, memory: LlamaModel, count: int, *, sharing: bool) -> None:
        self._memory = memory
        self.sharing = sharing
        self._places = [_Place(number) for number in range(count)]
        self._turn = 0
        self._apart = 0

    @property
    def tokens(self) -> int:
        """Tokens that running sequences hold; shared ones count for each."""
        return sum(len(place.token_ids) for place in self._places if place.used)

    def begin(self, token_ids: Sequence[int]) -> tuple[int, int] | None:
        """Give a sequence a place.

        Args:
            token_ids: tokens of the sequence, of which the last is left to compute.

        Returns:
            The place's key and the number of tokens that are computed in it already; None if all places are taken.
        """
        idle = [place for place in self._places if not place.used]
        if not idle:
            return None
        source, common = self._longest(token_ids)
        target = self._target(idle, source, common)
        if target is source:
            common = common if self._cut(target, common) else 0
        else:
            self._cut(target, 0)
            if source is not None:
                self._memory.share(source.number, target.number, common)
                target.token_ids = source.token_ids[:common]
        target.used = True
        return target.key, len(target.token_ids)

    def number(self, key: int) -> int:
        """Number of a place's sequence in llama.cpp's memory."""
        return self._places[key].number

    def close_gap(self) -> None:
        """Move a running sequence next to the others, once the gap has cost as much as the move does.

        llama.cpp computes sequences of consecutive parts together, and the others afterwards.
        """
        running = sorted(place.number for place in self._places if place.used)
        if not running or running[-1] - running[0] < len(running):
            self._apart = 0
            return
        self._apart += 1
        ends = range(len(running), len(self._places) + 1)
        spans = [range(end - len(running), end) for end in ends]
        span = max(spans, key=lambda one: sum(number in one for number in running))
        moved, gap = (
            min(
                (place for place in self._places if place.used == used and (place.number in span) != used),
                key=lambda place: len(place.token_ids),
            )
            for used in (True, False)
        )
        if self._apart * _MOVED_PER_STEP >= len(moved.token_ids) + len(gap.token_ids):
            self._memory.swap(moved.number, gap.number)
            moved.number, gap.number = gap.number, moved.number

    def _longest(self, token_ids: Sequence[int]) -> tuple[_Place | None, int]:
        """The place that holds most of the beginning of `token_ids`, and how much."""
        if not self.sharing:
            return None, 0
        limit = len(token_ids) - 1
        found = [(min(limit, common_length(place.token_ids, token_ids)), place) for place in self._places]
        if not self._memory.can_share:
            # A recurrent state goes on where it is, or not at all.
            found = [(common, place) for common, place in found if not place.used and common == len(place.token_ids)]
        common, source = max(found, key=lambda one: one[0], default=(0, None))
        return (source, common) if common >= min(_WORTH_SHARING, limit) and common else (None, 0)

    def _target(self, idle: list[_Place], source: _Place | None, common: int) -> _Place:
        others = [place for place in idle if place is not source]
        if source is not None and not source.used:
            empty = any(not place.token_ids for place in others) and self._memory.can_share
            if common == len(source.token_ids) or not empty:
                return source
        return min(others, key=lambda place: (bool(place.token_ids), place.used_at))

    def _cut(self, place: _Place, length: int) -> bool:
        """Leave `length` tokens; False if nothing could be left."""
        if length == len(place.token_ids) or self._memory.cut(place.number, length):
            del place.token_ids[length:]
            return True
        self._memory.cut(place.number, 0)
        place.token_ids.clear()
        return False

    def advance(self, key: int, token_ids: Sequence[int]) -> None:
        """Note tokens that were computed."""
        self._places[key].token_ids.extend(token_ids)

    def end(self, key: int, *, forget: bool = False) -> None:
        """Let go of a place; what it holds stays for later prompts, unless it is to be forgotten."""
        place = self._places[key]
        self._turn += 1
        place.used, place.used_at = False, self._turn
        if forget or not self.sharing:
            self._cut(place, 0)

    def evict(self) -> bool:
        """Forget what the place holds that has been idle for longest; False if none holds anything."""
        held = [place for place in self._places if not place.used and place.token_ids]
        if not held:
            return False
        self._cut(min(held, key=lambda place: place.used_at), 0)
        return True

    def forget_all(self) -> bool:
        """Forget what idle places hold; False if some are not idle."""
        while self.evict():
            pass
        return not any(place.used for place in self._places)


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens of the common beginning of two sequences."""
    end = min(len(one), len(other))
    start = 0
    while start < end and one[start : start + _BLOCK] == other[start : start + _BLOCK]:
        start += _BLOCK
    start = min(start, end)
    while start < end and one[start] == other[start]:
        start += 1
    return start
