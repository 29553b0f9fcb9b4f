"""Draft model: a small model that guesses the next tokens of a few sequences, greedily.

Its guesses change nothing but speed, so it keeps to what is simple: a place of its cache for each sequence, and passes
over rows, each a token of one sequence. First come the rows of tokens that it has not read (of a prompt, or those that
were accepted lately), then a row per sequence for each further guess, fed by the device with its own last one. What it
has read of a rejected draft is written over.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import logging
import time
from collections.abc import Container, Sequence
from typing import Any

import torch

from openai_bls.core.manifest import first_line
from openai_bls.engines.embedded.draft_cache import SlotCache

logger = logging.getLogger(__name__)

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Rows of the passes that are captured."""
_MOST_ROWS = _SIZES[-1]
_READ_AT_ONCE = 512
"""Rows of unread tokens between two steps; a longer prompt is read beside several."""


_FIRST_COST = 0.2
"""Of a guess, before it is measured."""


def _averaged(before: float, newest: float) -> float:
    """Moving average of times, in which one that was held up counts little; 0 is none yet."""
    return newest if not before else 0.9 * before + 0.1 * min(newest, 2 * before)


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """A sequence that wants guesses."""

    key: str
    token_ids: Sequence[int]
    """All of its tokens."""
    count: int
    """Most guesses."""


@dataclasses.dataclass(slots=True)
class _Slot:
    """What the cache holds of a sequence."""

    index: int
    read: list[int] = dataclasses.field(default_factory=list)
    """Its tokens in the cache, guesses included."""
    agreed: int = 0
    """How many of them are sure to be the sequence's."""

    def unread(self, token_ids: Sequence[int]) -> int:
        """Index of the first token that is to be read, at least the last; forgets guesses that were wrong."""
        end = min(len(self.read), len(token_ids) - 1)
        while self.agreed < end and self.read[self.agreed] == token_ids[self.agreed]:
            self.agreed += 1
        del self.read[self.agreed :]
        return self.agreed


class DraftModel:
    """Guesses of a draft model; used by one thread at a time."""

    def __init__(
        self, model: Any, *, vocab_size: int, slots: int, max_length: int, most_guesses: int, graphs: bool
    ) -> None:
        """Allocate the cache, and capture all passes where they can be.

        Args:
            model: a transformers causal language model, on its device, that attends by `draft_cache`.
            vocab_size: of the model that it guesses for.
            slots: sequences at a time.
            max_length: tokens of a sequence, beyond which nothing is guessed.
            most_guesses: for a sequence at a time.
            graphs: attend by the kernel for a GPU, and replay CUDA graphs.
        """
        self._model = model
        self._vocab_size = vocab_size
        self._max_length = max_length
        # Guesses may go beyond the longest sequence, and the rows that fill a pass up have a place of their own.
        self._cache = SlotCache(model, slots + 1, max_length + most_guesses, kernel=graphs)
        self._free = list(range(slots))
        self._filler = slots
        self._slots: dict[str, _Slot] = {}
        self._pass_seconds = 0.0
        self._step_seconds = 0.0
        self._captured: dict[tuple[int, bool], _Pass] = {}
        if graphs:
            pool = torch.cuda.graph_pool_handle()
            for size, alone in itertools.product(reversed(_SIZES), (False, True)):
                if not alone or size < 2 * slots:
                    self._captured[size, alone] = self._pass_of(size, alone=alone)
                    self._captured[size, alone].capture(pool)

    @property
    def cost(self) -> float:
        """Time of a guess, as a share of that of a step with a draft, as measured of late."""
        known = self._pass_seconds and self._step_seconds
        return self._pass_seconds / self._step_seconds if known else _FIRST_COST

    def note_step(self, seconds: float) -> None:
        """Note the time of a step with a draft, without the guesses."""
        self._step_seconds = _averaged(self._step_seconds, seconds)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def guess(self, wanted: Sequence[Wanted], live: Container[str]) -> list[list[int]]:
        """Guesses of the next tokens of sequences; none for one that is not read to its end yet.

        Args:
            wanted: sequences, no more than there are slots.
            live: keys of the sequences that have not ended.
        """
        for key in [key for key in self._slots if key not in live]:
            self._drop(key)
        rows: list[tuple[int, int, int]] = []
        last: dict[int, int] = {}  # index of a sequence in `wanted` → its last row
        for i, one in enumerate(wanted):
            if len(one.token_ids) > self._max_length:
                continue
            slot = self._slot(one.key, wanted)
            start = slot.unread(one.token_ids)
            end = min(len(one.token_ids), start + _READ_AT_ONCE - len(rows))
            rows += [(one.token_ids[place], slot.index, place) for place in range(start, end)]
            slot.read += one.token_ids[start:end]
            slot.agreed = max(slot.agreed, end - 1)
            if start < end == len(one.token_ids):
                last[i] = len(rows) - 1
        guesses: list[list[int]] = [[] for _ in wanted]
        count = max((wanted[i].count for i in last), default=0)
        started = time.perf_counter()
        found = self._read(rows, list(last.values()), count)
        if count and len(rows) <= 2 * len(wanted):  # no prompt among them
            self._pass_seconds = _averaged(self._pass_seconds, (time.perf_counter() - started) / count)
        for i, guessed in zip(last, found, strict=True):
            self._slots[wanted[i].key].read += guessed[:-1]
            guesses[i] = guessed[: wanted[i].count]
        return guesses

    def _slot(self, key: str, wanted: Sequence[Wanted]) -> _Slot:
        if key not in self._slots:
            if not self._free:
                keep = {one.key for one in wanted}
                self._drop(next(other for other in self._slots if other not in keep))
            self._slots[key] = _Slot(self._free.pop())
        return self._slots[key]

    def _drop(self, key: str) -> None:
        self._free.append(self._slots.pop(key).index)

    def _read(self, rows: Sequence[tuple[int, int, int]], last: Sequence[int], count: int) -> list[list[int]]:
        """Read rows of (token, slot, position); returns `count` guesses after each of those at the indices `last`."""
        ends: list[torch.Tensor] = []
        for first in range(0, len(rows), _MOST_ROWS):
            part = rows[first : first + _MOST_ROWS]
            step = self._pass(len(part), alone=len(rows) == len(last))
            step.put(torch.tensor(part).T)
            step.run()
            ends.append(step.rows[:, [row - first for row in last if first <= row < first + len(part)]])
        if not last:
            return []
        guesses = torch.cat(ends, 1)
        step = self._pass(len(last), alone=True)
        step.put(guesses)
        found = [guesses[0]]
        for _ in range(count - 1):
            step.run()
            found.append(step.rows[0, : len(last)].clone())
        told: list[list[int]] = torch.stack(found, 1).tolist()
        return told

    def _pass(self, count: int, *, alone: bool) -> _Pass:
        """A pass that holds `count` rows, each of another sequence if they are `alone`."""
        if not self._captured:
            return self._pass_of(count, alone=alone)
        return self._captured[_SIZES[bisect.bisect_left(_SIZES, count)], alone]

    def _pass_of(self, size: int, *, alone: bool) -> _Pass:
        return _Pass(self._model, self._cache, size, self._filler, self._vocab_size, alone=alone)


class _Pass:
    """Pass over a fixed number of rows, each of which becomes the row of the token that is guessed after it."""

    def __init__(self, model: Any, cache: SlotCache, size: int, filler: int, vocab_size: int, *, alone: bool) -> None:
        self.rows = torch.zeros(3, size, dtype=torch.int64, device=model.device)
        """Tokens, slots and positions."""
        self._model, self._cache = model, cache
        self._filler, self._vocab_size, self._alone = filler, vocab_size, alone
        self._graph: torch.cuda.CUDAGraph | None = None

    def put(self, rows: torch.Tensor) -> None:
        """Set the rows, [3, rows], as many as there are; all others are to fill up."""
        count = rows.shape[1]
        self.rows[:, :count] = rows.to(self.rows.device)
        self.rows[1, count:] = self._filler
        self.rows[2, count:] = 0

    def run(self) -> None:
        """Guess, and move on."""
        if self._graph is None:
            self._forward()
        else:
            self._graph.replay()

    def _forward(self) -> None:
        tokens, slots, positions = self.rows
        self._cache.begin(slots, positions, alone=self._alone)
        logits = self._model(
            input_ids=tokens[None], position_ids=positions[None], cache=self._cache, use_cache=False
        ).logits
        self.rows[0] = logits[0, :, : self._vocab_size].argmax(-1)
        self.rows[2] += 1

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def capture(self, pool: Any) -> None:
        """Capture the pass in a CUDA graph over the memory `pool`; where that fails it runs without."""
        self.put(self.rows[:, :0])
        self._forward()  # compiles its kernels
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        self.put(self.rows[:, :0])
        try:
            with torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):
                self._forward()
        except Exception as error:  # of compilers and drivers
            logger.warning("the draft model runs without CUDA graphs: %s", first_line(error))
            torch.cuda.synchronize()
            return
        self._graph = graph
