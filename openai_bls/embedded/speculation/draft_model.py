"""Draft model: a small model that guesses the next tokens of a few sequences, greedily.

Its guesses change nothing but speed, so it keeps to what is simple: a place of its cache for each sequence, and passes
over rows, each a token of one sequence. First come the rows of tokens that it has not read (of a prompt, or those that
were accepted lately), then a row per sequence for each further guess, fed by the device with its own last one. What it
has read of a rejected draft is written over.
"""

from __future__ import annotations

import bisect
import dataclasses
import logging
import time
from collections.abc import Container, Sequence
from typing import Any, Literal

import torch

from openai_bls.core.manifest import first_line
from openai_bls.embedded.speculation.draft_budget import averaged
from openai_bls.embedded.speculation.draft_cache import SlotCache

logger = logging.getLogger(__name__)

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Rows of the passes that guess."""
_MOST_ROWS = MOST_SLOTS = _SIZES[-1]
_READ_AT_ONCE = 512
"""Rows of a pass that only reads, of which there is one between two steps; a longer prompt is read beside several."""
_Kind = Literal["guess", "guess alone", "read"]
"""Kind of a pass: it guesses after each row, does so with rows of as many sequences, or does not guess."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """A sequence that wants guesses."""

    key: str
    token_ids: Sequence[int]
    """Tokens of the sequence, always from the same one on."""
    count: int
    """Most guesses; fewer where others want less."""


@dataclasses.dataclass(slots=True)
class _Slot:
    """What the cache holds of a sequence."""

    index: int
    read: list[int] = dataclasses.field(default_factory=list)
    """Tokens of the sequence in the cache, guesses included."""
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
            vocab_size: size of the vocabulary of the model that it guesses for.
            slots: sequences at a time.
            max_length: tokens of the longest sequence.
            most_guesses: most guesses for a sequence at a time.
            graphs: attend by the kernel for a GPU, and replay CUDA graphs.
        """
        self._model = model
        self._vocab_size = vocab_size
        self.max_length = max_length
        """Tokens of a sequence beyond which nothing is guessed."""
        # Guesses may go beyond the longest sequence, and the rows that fill a pass up have a place of their own.
        self._cache = SlotCache(model, slots + 1, max_length + most_guesses, kernel=graphs)
        self._free = list(range(slots))
        self._filler = slots
        self._slots: dict[str, _Slot] = {}
        self.pass_seconds = 0.0
        """Average time of a guess of all sequences; 0 before it is measured."""
        self._captured: dict[tuple[_Kind, int], _Pass] = {}
        if graphs:
            pool = torch.cuda.graph_pool_handle()
            kinds: list[tuple[_Kind, int]] = [("read", _READ_AT_ONCE), *(("guess", size) for size in reversed(_SIZES))]
            kinds += [("guess alone", size) for size in reversed(_SIZES) if size < 2 * slots]
            for kind, size in kinds:
                self._captured[kind, size] = self._pass_of(kind, size)
                self._captured[kind, size].capture(pool)

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
            if len(one.token_ids) > self.max_length:
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
        count = passes([wanted[i].count for i in last])
        started = time.perf_counter()
        found = self._read(rows, list(last.values()), count)
        if count and len(rows) <= 2 * len(wanted):  # no prompt among them
            self.pass_seconds = averaged(self.pass_seconds, (time.perf_counter() - started) / count)
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
        if len(rows) > _MOST_ROWS:  # with a prompt among them
            self._run("read", [row for i, row in enumerate(rows) if i not in last])
            rows, last = [rows[i] for i in last], range(len(last))
        if not rows:
            return []
        step = self._run("guess alone" if len(rows) == len(last) else "guess", rows)
        if not last:
            return []
        guesses = step.rows[:, list(last)]
        step = self._pass("guess alone", len(last))
        step.put(guesses)
        found = [guesses[0]]
        for _ in range(count - 1):
            step.run()
            found.append(step.rows[0, : len(last)].clone())
        told: list[list[int]] = torch.stack(found, 1).tolist()
        return told

    def _run(self, kind: _Kind, rows: Sequence[tuple[int, int, int]]) -> _Pass:
        step = self._pass(kind, len(rows))
        step.put(torch.tensor(rows).T)
        step.run()
        return step

    def _pass(self, kind: _Kind, count: int) -> _Pass:
        """A pass of a kind that holds `count` rows."""
        if not self._captured:
            return self._pass_of(kind, count)
        return self._captured[kind, _READ_AT_ONCE if kind == "read" else _SIZES[bisect.bisect_left(_SIZES, count)]]

    def _pass_of(self, kind: _Kind, size: int) -> _Pass:
        return _Pass(self._model, self._cache, kind, size, self._filler, self._vocab_size)


def passes(counts: Sequence[int]) -> int:
    """Passes that are worth their while for sequences that want so many guesses each: all wait for each pass."""
    return -(-sum(counts) // len(counts)) if counts else 0


class _Pass:
    """Pass over a fixed number of rows; one that guesses makes each the row of the token guessed after it."""

    def __init__(self, model: Any, cache: SlotCache, kind: _Kind, size: int, filler: int, vocab_size: int) -> None:
        self.rows = torch.zeros(3, size, dtype=torch.int64, device=model.device)
        """Tokens, slots and positions."""
        self._model, self._cache = model, cache
        self._kind, self._filler, self._vocab_size = kind, filler, vocab_size
        self._graph: torch.cuda.CUDAGraph | None = None

    def put(self, rows: torch.Tensor) -> None:
        """Set the rows, [3, rows], as many as there are; all others are to fill up."""
        count = rows.shape[1]
        self.rows[:, :count] = rows.to(self.rows.device)
        self.rows[1, count:] = self._filler
        self.rows[2, count:] = 0

    def run(self) -> None:
        """Read the rows, and guess."""
        if self._graph is None:
            self._forward()
        else:
            self._graph.replay()

    def _forward(self) -> None:
        tokens, slots, positions = self.rows
        self._cache.begin(slots, positions, alone=self._kind == "guess alone")
        inputs = {"input_ids": tokens[None], "position_ids": positions[None], "cache": self._cache, "use_cache": False}
        if self._kind == "read":
            self._model.base_model(**inputs)
            return
        self.rows[0] = self._model(**inputs).logits[0, :, : self._vocab_size].argmax(-1)
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
