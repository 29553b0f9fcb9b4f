"""Stop string matching across chunk borders (Aho-Corasick)."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence


class _Automaton:
    """Aho-Corasick automaton of one set of stop strings; immutable, shared by all its matchers.

    A state is the longest suffix of the text that is a prefix of a stop string: the text that must be held back.
    State 0 is the empty string.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.next: list[dict[str, int]] = [{}]
        self.fail = [0]
        self.depth = [0]
        self.match: list[str | None] = [None]
        """Longest stop string that the text ends with, per state."""
        self.held: list[str] = [""]
        """Stop string that begins with the state's string, per state."""
        for stop in stops:
            self._insert(stop)
        self._link()
        # Skips text in which no stop string begins at the speed of C.
        self.begin = re.compile("[" + "".join(map(re.escape, sorted(self.next[0]))) + "]").search

    def _insert(self, stop: str) -> None:
        state = 0
        for char in stop:
            target = self.next[state].get(char)
            if target is None:
                target = len(self.next)
                self.next[state][char] = target
                self.next.append({})
                self.fail.append(0)
                self.depth.append(self.depth[state] + 1)
                self.match.append(None)
                self.held.append(stop)
            state = target
        self.match[state] = stop

    def _link(self) -> None:
        queue = deque(self.next[0].values())
        while queue:
            state = queue.popleft()
            for char, target in self.next[state].items():
                self.fail[target] = self.step(self.fail[state], char)
                if self.match[target] is None:
                    self.match[target] = self.match[self.fail[target]]
                queue.append(target)

    def step(self, state: int, char: str) -> int:
        """The state after one more character; amortized constant time."""
        while (target := self.next[state].get(char)) is None:
            if not state:
                return 0
            state = self.fail[state]
        return target


class _Recent:
    """Automata of the sets that were last used, as many as have so many states together. Thread-safe."""

    _MAX_STATES = 65_536
    """States of the kept ones, of a third of a kilobyte each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, ...], _Automaton] = OrderedDict()
        self._states = 0

    def of(self, stops: tuple[str, ...]) -> _Automaton:
        """The automaton of a set, whose stop strings are sorted."""
        with self._lock:
            found = self._kept.get(stops)
            if found is None:
                found = self._kept[stops] = _Automaton(stops)
                self._states += len(found.next)
            self._kept.move_to_end(stops)
            while self._states > self._MAX_STATES and len(self._kept) > 1:
                _, forgotten = self._kept.popitem(last=False)
                self._states -= len(forgotten.next)
            return found


_automata = _Recent()


class StopMatcher:
    """Cuts one text at the first stop string.

    The stop string that is complete first wins, since generation would have ended there; of several that end at the
    same character, the longest. With stops "abcd" and "bc" the text "xabcd" is cut to "xa"; with "abc" and "bc", to
    "x". The result does not depend on how the text is cut into pushes; the cost is linear in the text.

    Args:
        stops: stop strings in any order, at least one, none empty.
        include_stop_str_in_output: whether the matched stop string stays at the end of the text.
        names: stop string → what a match of it is told as; none is itself.

    Raises:
        ValueError: there is no stop string, or an empty one.
    """

    __slots__ = ("_automaton", "_include", "_names", "_state", "matched")

    def __init__(
        self,
        stops: Sequence[str],
        include_stop_str_in_output: bool = False,
        names: Mapping[str, str] | None = None,
    ) -> None:
        if not stops or not all(stops):
            raise ValueError("stop strings must not be empty")
        self._automaton = _automata.of(tuple(sorted(set(stops))))
        self._include = include_stop_str_in_output
        self._names = names or {}
        self._state = 0
        self.matched: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> tuple[str, str | None]:
        """Take the next text; return the text that may be sent, and the stop string if one matched.

        Only a suffix that may become a stop string is held back. After a match every push returns no text and the
        same match.
        """
        if self.matched is not None:
            return "", self.matched
        automaton = self._automaton
        start = state = self._state
        step, match, begin = automaton.step, automaton.match, automaton.begin
        position, end = 0, len(text)
        while position < end:
            if not state:
                found = begin(text, position)
                if found is None:
                    break
                position = found.start()
            state = step(state, text[position])
            position += 1
            matched = match[state]
            if matched is not None:
                self.matched = self._names.get(matched, matched)
                self._state = 0
                kept = position if self._include else position - len(matched)
                return self._emit(start, text, kept), self.matched
        self._state = state
        return self._emit(start, text, end - automaton.depth[state]), None

    def finish(self) -> str:
        """Return the held text, which did not become a stop string."""
        state, self._state = self._state, 0
        return self._automaton.held[state][: self._automaton.depth[state]]

    def _emit(self, start: int, text: str, end: int) -> str:
        """The text held in state `start` and `text`, up to `text[end]`; `end` may be negative."""
        if not start:
            return text[:end]
        held, depth = self._automaton.held[start], self._automaton.depth[start]
        if end < 0:
            return held[: depth + end]
        return held[:depth] + text[:end]
