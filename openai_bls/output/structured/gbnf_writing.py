r"""The least of GBNF: what every xgrammar from 0.1.10 on reads, and reads alike.

TensorRT-LLM has an xgrammar built in, of a version of its own (0.1.18 in 0.21, 0.1.25 in 1.2). What is written here is
what `cpp/grammar_parser.cc`, `cpp/support/encoding.cc` and the matchers of the tags v0.1.10 to v0.1.34 take for what it
is: rules `name ::= ...`, literals, classes, `( ) | * ?`.

- Literals and classes know `\" \\ \n \r \t \uHHHH \UHHHHHHHH`. `\x` takes as many digits as follow; `\^` and `\[` are
  unknown.
- Every version prints a grammar and reads that again, with characters up to U+00FF that have no other escape as `\xHH`:
  `"\u00dfe"` comes back as `"\xdfe"`, one character. So no hexadecimal digit follows one of these, in a literal or in a
  class, and `^`, which is printed as it is, is not the first in a class.
- A class of characters beyond ASCII matches none of them up to 0.1.25, a negated one all of them, whatever it names;
  0.1.21 never comes to an end over one that names any. So a set has all characters beyond ASCII, and is a negated class
  of ASCII characters, or a few, which are written one by one; any other is refused. Half surrogate pairs, which are no
  text, pass such a class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from openai_bls.output.structured.charsets import Ranges, complement, normal
from openai_bls.output.structured.ebnf_tree import CharSet, Choice, Literal, Node, Repeat, Rule, Sequence
from openai_bls.output.structured.errors import FormatError

_MAX_WIDE = 128
"""Characters beyond ASCII that are written one by one; each is an alternative of its own."""
_WIDE = complement(((0, 0x7F),))
# `.` leaves them out for the sake of ECMAScript alone.
_LINE_ENDS: Ranges = ((0x2028, 0x2029),)
_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t", '"': r"\"", "\\": r"\\"}
_DIGITS = frozenset("0123456789abcdefABCDEF")
_CARET = ord("^")


def body(node: Node, *, current: bool = False) -> str:
    """What a rule stands for, in GBNF. There are no counts in it.

    Args:
        node: it.
        current: for an xgrammar of 0.2 alone, whose classes hold what they say.

    Raises:
        FormatError: it cannot be said to every version.
    """
    found = [_sequence(part, current) for part in _alternatives(node)]
    if not found:
        raise FormatError("nothing would match")
    return " | ".join(dict.fromkeys(found))


def apart(node: Node, digit: Callable[[str], Rule]) -> Node:
    """The part with a rule of its own for each hexadecimal digit that would be read as one of an escape before it.

    Args:
        node: the part.
        digit: a digit's rule.
    """
    match node:
        case Choice(parts) if len(parts) != 1:
            return Choice(tuple(apart(part, digit) for part in parts))
        case Repeat(part, least, most):
            return node if isinstance(part, CharSet) else Repeat(apart(part, digit), least, most)
        case Choice() | Sequence():
            pass
        case Literal():
            pass
        case _:
            return node
    found: list[Node] = []
    escaped = False
    for part in _in_turn(node):
        text = _text(part)
        if text is None:
            found.append(apart(part, digit))
            escaped = False
            continue
        start = 0
        for place, char in enumerate(text):
            if escaped and char in _DIGITS:
                found += [Literal(text[start:place]), digit(char)]
                start = place + 1
            escaped = _by_number(char)
        found.append(Literal(text[start:]))
    return Sequence(tuple(found))


def _text(node: Node) -> str | None:
    """The text that a part is, if it is one."""
    match node:
        case Literal(text):
            return text
        case CharSet(((first, last),)) if first == last and first:
            return chr(first)
    return None


def _by_number(char: str) -> bool:
    """Whether xgrammar prints a character as `\\xHH`."""
    return char <= "\xff" and not " " <= char <= "~" and char not in "\0\a\b\t\n\v\f\r\x1b"


def _alternatives(node: Node) -> Iterable[Node]:
    if isinstance(node, Choice):
        for part in node.parts:
            yield from _alternatives(part)
    elif isinstance(node, Sequence) and len(node.parts) == 1:
        yield from _alternatives(node.parts[0])
    else:
        yield node


def _sequence(node: Node, current: bool) -> str:
    return " ".join(_atom(part, current) for part in _in_turn(node)) or '""'


def _in_turn(node: Node) -> Iterable[Node]:
    if isinstance(node, Choice) and len(node.parts) == 1:
        yield from _in_turn(node.parts[0])
    elif isinstance(node, Sequence):
        for part in node.parts:
            yield from _in_turn(part)
    elif node != Literal(""):
        yield node


def _atom(node: Node, current: bool) -> str:
    text = _text(node)
    if text is not None:
        return _literal(text)
    match node:
        case CharSet(ranges):
            return _set(ranges, current)
        case Rule(name):
            return name
        case Repeat(part, _, most):
            repeated = _set(part.ranges, current) if isinstance(part, CharSet) else _atom(part, current)
            return f"{repeated}{'*' if most is None else '?'}"
    return f"({body(node, current=current)})"


def _literal(text: str) -> str:
    if "\0" in text:
        raise FormatError("the character NUL cannot be enforced here")
    return f'"{"".join(map(_in_literal, text))}"'


def _set(ranges: Ranges, current: bool) -> str:
    if current and ranges:
        return f"[{_members(ranges)}]"
    wide = normal((max(first, 0x80), last) for first, last in ranges if last >= 0x80)
    narrow = tuple((first, min(last, 0x7F)) for first, last in ranges if first < 0x80)
    if wide and normal((*wide, *_LINE_ENDS)) == _WIDE:
        others = tuple((first, min(last, 0x7F)) for first, last in complement(ranges) if first < 0x80)
        # There are no empty classes. Up to 0.1.25 NUL is no text in any case.
        return f"[^{_members(others or ((0, 0),))}]"
    parts = [chr(point) for first, last in wide[: _MAX_WIDE + 1] for point in range(first, last + 1)[: _MAX_WIDE + 1]]
    if len(parts) > _MAX_WIDE:
        raise FormatError(
            "a set that has many characters beyond ASCII, but not all, takes structural tags, which this server's "
            "engine does not have"
        )
    members = [f"[{_members(narrow)}]"] if narrow else []
    members += [_literal(char) for char in parts]
    return members[0] if len(members) == 1 else f"({' | '.join(members)})"


def _members(ranges: Ranges) -> str:
    # Those that begin with a digit first, then none can follow an escape.
    ordered = sorted(ranges, key=lambda pair: chr(pair[0]) not in _DIGITS)
    if ordered[0][0] == _CARET and len(ordered) > 1:
        ordered.append(ordered.pop(0))
    elif ordered[0][0] == _CARET < ordered[0][1]:
        ordered = [(_CARET + 1, ordered[0][1]), (_CARET, _CARET)]
    return "".join(
        _in_class(first) if first == last else f"{_in_class(first)}-{_in_class(last)}" for first, last in ordered
    )


def _in_class(point: int) -> str:
    char = chr(point)
    return char if char.isascii() and char.isalnum() else _by_code(point)


def _in_literal(char: str) -> str:
    if char in _NAMED:
        return _NAMED[char]
    if " " <= char <= "~":
        return char
    return _by_code(ord(char))


def _by_code(point: int) -> str:
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"
