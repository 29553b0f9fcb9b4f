"""Free text in which some strings must not be, or mean something, as rules of a grammar.

The rules are the states of the automaton of Aho and Corasick over those strings: what of the text read so far may be
the beginning of one. So however a text goes on, there is one way to read it.

No version of xgrammar up to 0.1.25 can tell one character beyond ASCII from another but by its name. So within such a
string as `<｜tool` no character beyond ASCII may come but the string's own: behind a `<` there is none in the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from openai_bls.output.structured import ebnf_tree
from openai_bls.output.structured.charsets import Ranges, complement, normal
from openai_bls.output.structured.ebnf_tree import CharSet, Choice, Literal, Node, Repeat, Rule
from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.gbnf_rules import EMPTY, Rules

_ANY = CharSet(complement(()))
# Each is a state at the most. xgrammar itself takes seconds for more, see `formats`.
_MAX_CHARACTERS = 400


def text(rules: Rules, excludes: Sequence[str], *, ends: Sequence[str] = ()) -> Node:
    """Any text without any of `excludes`, or, with `ends`, one without them either and then one of them.

    Raises:
        FormatError: one of the strings begins with a character beyond ASCII.
    """
    if not ends:
        return Repeat(_ANY, 0, None) if not excludes else automaton(rules, rules.reserve("text"), excludes, {})
    if _apart(ends, [*excludes, *ends]):
        follows = dict.fromkeys(ends, EMPTY)
        return automaton(rules, rules.reserve("text"), excludes, follows, may_end=False)
    before = automaton(rules, rules.reserve("text"), [*excludes, *ends], {})
    return ebnf_tree.Sequence((before, Choice(tuple(map(Literal, ends)))))


def _apart(ends: Iterable[str], others: Sequence[str]) -> bool:
    """Whether in a text without any of `others` and one of `ends` behind it none of `others` is but that end. If not,
    such a text may go on where another ends, or end where a string that must not be is completed."""
    return not any(
        other in end[:-1]
        or (other != end and end.endswith(other))
        or any(other.endswith(end[:cut]) for cut in range(1, len(end) if other == end else len(end) + 1))
        for end in ends
        for other in others
    )


def automaton(
    rules: Rules, start: Rule, excludes: Iterable[str], follows: Mapping[str, Node], *, may_end: bool = True
) -> Rule:
    """Any text without any of `excludes`, in which what follows one of some strings is as these say.

    Args:
        rules: of the grammar that it is a part of.
        start: reserved for its beginning.
        excludes: strings with something in them.
        follows: what comes, in the text's stead, behind each of these strings where it comes first.
        may_end: whether the text may end anywhere but within one of those.

    Raises:
        FormatError: one of the strings begins with a character beyond ASCII.
    """
    _Automaton(rules, start, excludes, follows, may_end).write()
    return start


class _Automaton:
    def __init__(
        self, rules: Rules, start: Rule, excludes: Iterable[str], follows: Mapping[str, Node], may_end: bool
    ) -> None:
        self._rules = rules
        self._may_end = may_end
        self._names = {0: start}
        excluded = set(excludes)
        words = sorted(excluded | follows.keys())
        if sum(map(len, words)) > _MAX_CHARACTERS:
            raise FormatError(
                f"free text takes strings that end or interrupt it of {_MAX_CHARACTERS} characters in all"
            )
        # By state, of which 0 is the beginning: the states that characters lead to, without those that lead to 0.
        self._next: list[dict[str, int]] = [{}]
        # What a string means that is complete there; None if it must not be.
        self._complete: dict[int, Node | None] = {}
        for word in words:
            state = 0
            for letter in word:
                if letter not in self._next[state]:
                    self._next[state][letter] = len(self._next)
                    self._next.append({})
                state = self._next[state][letter]
            self._complete[state] = None if word in excluded else follows[word]
        self._go_on()

    def _go_on(self) -> None:
        """Where a string is not gone on with, go on with the longest other one that what was read may begin."""
        shorter = dict.fromkeys(self._next[0].values(), 0)
        waiting = list(shorter)
        for state in waiting:
            other = shorter[state]
            if other in self._complete and (self._complete[other] is None or state not in self._complete):
                self._complete[state] = self._complete[other]
            for letter, longer in self._next[state].items():
                shorter[longer] = self._next[other].get(letter, 0)
                waiting.append(longer)
            self._next[state] = {**self._next[other], **self._next[state]}

    def write(self) -> None:
        waiting = [0]
        for state in waiting:
            for letter in self._next[state]:
                following = self._next[state][letter]
                if following not in self._names and following not in self._complete:
                    self._names[following] = self._rules.reserve("text")
                    waiting.append(following)
        for state in waiting:
            self._rules.define(self._names[state], self._body(state))

    def _body(self, state: int) -> Node:
        letters: dict[int, list[int]] = {}
        parts: list[Node] = []
        for letter, following in self._next[state].items():
            if following not in self._complete:
                letters.setdefault(following, []).append(ord(letter))
            elif (node := self._complete[following]) is not None:
                parts.append(ebnf_tree.Sequence((Literal(letter), node)))
        sets = {following: normal((point, point) for point in points) for following, points in letters.items()}
        sets[0] = self._others(state)
        again = sets.pop(state, ())
        parts += [
            ebnf_tree.Sequence((CharSet(ranges), self._names[following]))
            for following, ranges in sets.items()
            if ranges
        ]
        # One step for all characters that change nothing, or matchers would get deeper with each.
        loop = [Repeat(CharSet(again), 0, None)] if again else []
        if self._may_end:
            parts.append(EMPTY)
        return ebnf_tree.Sequence((*loop, Choice(tuple(parts)))) if parts else ebnf_tree.Sequence(tuple(loop))

    def _others(self, state: int) -> Ranges:
        """The characters behind which nothing of any string has been read."""
        found = complement(normal((ord(letter), ord(letter)) for letter in self._next[state]))
        if all(letter <= "\x7f" for letter in self._next[state]):
            return found
        if state == 0:
            raise FormatError(
                "free text without strings that begin with a character beyond ASCII takes structural tags, which this "
                "server's engine does not have"
            )
        # One of them cannot be told from the others, see `gbnf_writing`: none of them may come here.
        return tuple((first, min(last, 0x7F)) for first, last in found if first <= 0x7F)
