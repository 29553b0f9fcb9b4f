"""Small grammars at random, as Lark, with texts of their languages and a recognizer that needs no lexer."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import strategies as st

CHARS = 'ab"\\\n\t\x01<é '
# ("text", str), ("set", chars, negated), ("row", nodes), ("any", nodes), ("times", node, least, most), ("rule", number)
Part = tuple[Any, ...]

_TEXTS = st.text(st.sampled_from(CHARS), min_size=1, max_size=3).map(lambda text: ("text", text))
_SETS = st.tuples(
    st.just("set"),
    st.text(st.sampled_from(CHARS), min_size=1, max_size=4).map(lambda s: "".join(sorted(set(s)))),
    st.booleans(),
)
_COUNTS = st.sampled_from([(0, 1), (0, None), (1, None), (2, 2), (0, 2)])


def _nested(inner: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
    rows = st.lists(inner, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.tuples(st.just("row"), rows),
        st.tuples(st.just("any"), rows),
        st.tuples(inner, _COUNTS).map(lambda found: ("times", found[0], *found[1])),
    )


PATTERNS = st.recursive(_TEXTS | _SETS, _nested, max_leaves=5)
"""Parts that are regular expressions."""
_TERMINALS = st.one_of(_TEXTS, _SETS, PATTERNS.map(lambda part: ("pattern", part)))


@dataclass(frozen=True)
class Small:
    """A grammar: the bodies of its rules, of which the first is the start."""

    bodies: tuple[Part, ...]

    @property
    def lark(self) -> str:
        names = ["start", *(f"r{at}" for at in range(1, len(self.bodies)))]
        return "\n".join(f"{name}: {_lark(body, names)}" for name, body in zip(names, self.bodies, strict=True))

    def matches(self, text: str) -> bool:
        """Whether a text is in the language, by the grammar alone."""
        known: dict[tuple[int, int], set[int]] = {}
        while True:
            before = sum(map(len, known.values()))
            for rule, body in enumerate(self.bodies):
                for at in range(len(text) + 1):
                    known.setdefault((rule, at), set()).update(_ends(body, text, at, known))
            if sum(map(len, known.values())) == before:
                return len(text) in known[0, 0]

    def text(self, random: Random) -> str | None:
        """A text of the language; None if none came up."""
        try:
            return _sample(self.bodies[0], self.bodies, random, 12)
        except RecursionError:
            return None


def grammars(*, recursive: bool) -> st.SearchStrategy[Small]:
    """Grammars of one to three rules."""

    def bodies(count: int) -> st.SearchStrategy[Small]:
        def body(at: int) -> st.SearchStrategy[Part]:
            used = range(count) if recursive else range(at + 1, count)
            rules = st.sampled_from([("rule", number) for number in used]) if used else st.nothing()
            return st.recursive(_TERMINALS | rules, _nested, max_leaves=5)

        return st.tuples(*(body(at) for at in range(count))).map(Small)

    return st.integers(1, 3).flatmap(bodies)


def _ends(part: Part, text: str, at: int, known: dict[tuple[int, int], set[int]]) -> set[int]:  # noqa: PLR0911
    match part:
        case ("text", value):
            return {at + len(value)} if text.startswith(value, at) else set()
        case ("set", chars, negated):
            return {at + 1} if at < len(text) and (text[at] in chars) != negated else set()
        case ("pattern", inner):
            return _ends(inner, text, at, known)
        case ("rule", number):
            return known.get((number, at), set())
        case ("row", parts):
            places = {at}
            for one in parts:
                places = {end for place in places for end in _ends(one, text, place, known)}
            return places
        case ("any", parts):
            return {end for one in parts for end in _ends(one, text, at, known)}
    _, inner, least, most = part
    places, found = {at}, {at} if not least else set()
    for count in range(1, (len(text) + 2 if most is None else most) + 1):
        places = {end for place in places for end in _ends(inner, text, place, known)}
        if count >= least:
            found |= places
    return found


def _sample(part: Part, bodies: tuple[Part, ...], random: Random, depth: int) -> str:  # noqa: PLR0911
    if depth < 0:
        raise RecursionError
    match part:
        case ("text", value):
            return str(value)
        case ("set", chars, negated):
            held = [char for char in CHARS + "xyz" if (char in chars) != negated]
            return random.choice(held)
        case ("pattern", inner):
            return _sample(inner, bodies, random, depth)
        case ("rule", number):
            return _sample(bodies[number], bodies, random, depth - 1)
        case ("row", parts):
            return "".join(_sample(one, bodies, random, depth) for one in parts)
        case ("any", parts):
            for one in random.sample(parts, len(parts)):
                try:
                    return _sample(one, bodies, random, depth - 1)
                except RecursionError:
                    continue
            raise RecursionError
    _, inner, least, most = part
    count = random.randint(least, least + 2 if most is None else most)
    try:
        return "".join(_sample(inner, bodies, random, depth - 1) for _ in range(count))
    except RecursionError:
        if least:
            raise
        return ""


def _lark(part: Part, names: list[str]) -> str:  # noqa: PLR0911
    match part:
        case ("text", value):
            return (
                '"' + "".join(_code(char) if char in '"\\' or not " " < char <= "~" else char for char in value) + '"'
            )
        case ("set", _, _):
            return f"/{regex(part)}/"
        case ("pattern", inner):
            return f"/{regex(inner)}/"
        case ("rule", number):
            return names[number]
        case ("row", parts):
            return "(" + " ".join(_lark(one, names) for one in parts) + ")"
        case ("any", parts):
            return "(" + " | ".join(_lark(one, names) for one in parts) + ")"
    _, inner, least, most = part
    return f"({_lark(inner, names)}){_count(least, most)}"


def regex(part: Part) -> str:
    """A part as a regular expression."""
    match part:
        case ("text", value):
            return "".join(map(_regex_char, value))
        case ("set", chars, negated):
            return f"[{'^' if negated else ''}{''.join(map(_regex_char, chars))}]"
        case ("row", parts):
            return "".join(f"(?:{regex(one)})" for one in parts)
        case ("any", parts):
            return "(?:" + "|".join(map(regex, parts)) + ")"
    _, inner, least, most = part
    return f"(?:{regex(inner)}){_count(least, most)}"


def _count(least: int, most: int | None) -> str:
    signs = {(0, 1): "?", (0, None): "*", (1, None): "+"}
    return signs.get((least, most)) or f"{{{least},{most}}}"


def _regex_char(char: str) -> str:
    return char if char in "ab<xyzé" else f"\\x{ord(char):02x}"


def _code(char: str) -> str:
    return {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}.get(char) or (
        char if char in " é" else f"\\x{ord(char):02x}"
    )
