"""Lark grammars of custom tools as rules of `gbnf`, in the dialect of llguidance, in which OpenAI takes them.

Rules, terminals, strings and regular expressions with flags, ranges, groups, `?`, `*`, `+`, `~`, `{}`, alternatives
with aliases, priorities, comments, `%import common.X` and `%ignore`. The language is that of the rules alone: how a
lexer would cut the text into terminals plays no part. What stands for something else than text is refused by name.
"""

from __future__ import annotations

import re
from typing import NoReturn

from openai_bls.output.structured.errors import FormatError, shown
from openai_bls.output.structured.grammars import regex_nodes
from openai_bls.output.structured.grammars.gbnf import CharSet, Literal, Node, Repeat, Rule, Sequence, uses

_MAX_NESTING = 20
_MAX_RULES = 5_000
_MAX_COUNT = 20_000
START = "start"

_TOKEN = re.compile(
    r"""(?P<space>(?:[ \t\f\r]|//[^\n]*|\#[^\n]*)+)|(?P<line>\n)|(?P<string>"(?:[^"\\\n]|\\.)*"i?)"""
    r"|(?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/[a-z]*)|(?P<directive>%[a-z]+)|(?P<name>[?!]*[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<number>-?\d+)|(?P<sign>->|\.\.|[:|()\[\]{}*+?~.,<>&=@!])",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "b": "\b", "0": "\0", **{c: c for c in "\\\"'/"}}
_STRING_ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|u\{([0-9A-Fa-f]{1,6})\}|(.))", re.S
)
_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9A-Fa-f]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "_EXP": "[eE][+-]?[0-9]+",
    "FLOAT": r"[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_FLOAT": r"[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)",
    "NUMBER": r"[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)",
    "ESCAPED_STRING": r'"([^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "C_COMMENT": r"/\*([^*]|\*+[^*/])*\*+/",
    "SQL_COMMENT": r"--[^\n]*",
}


def parse(definition: str) -> dict[str, Node]:
    """The rules of a Lark grammar by name, of which `start` is the first.

    Raises:
        FormatError: it is none, or has what is refused here.
    """
    return _Parser(definition).parse()


def is_terminal(name: str) -> bool:
    """True if a name is that of a terminal."""
    letters = name.lstrip("_")
    return letters[:1].isupper()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._rules: dict[str, Node] = {}
        self._ignored: list[Node] = []
        self._in_terminal = False
        self._characters = regex_nodes.Characters()

    def parse(self) -> dict[str, Node]:
        while self._kind() != "end":
            if self._kind() == "line":
                self._at += 1
            elif self._kind() == "directive":
                self._directive()
            else:
                self._definition()
        if START not in self._rules:
            raise FormatError(f"bad Lark grammar: it has no rule '{START}'")
        for name, node in self._rules.items():
            for other in uses(node):
                if other not in self._rules:
                    raise FormatError(f"bad Lark grammar: {name!r} uses {other!r}, which is not defined")
                if is_terminal(name) and not is_terminal(other):
                    raise FormatError(f"bad Lark grammar: the terminal {name!r} uses the rule {other!r}")
        rules = self._with_ignored() if self._ignored else self._rules
        return {START: rules[START], **rules}

    def _kind(self) -> str:
        return self._tokens[self._at][0]

    def _text(self) -> str:
        return self._tokens[self._at][1]

    def _take(self, text: str | None = None) -> str:
        found = self._text()
        if text is not None and found != text:
            self._fail(f"{text!r} expected")
        self._at += 1
        return found

    def _fail(self, what: str) -> NoReturn:
        _, text, line = self._tokens[self._at]
        raise FormatError(f"bad Lark grammar, line {line}: {what}, not {shown(text) if text else 'the end'}")

    def _refuse(self, what: str) -> NoReturn:
        raise FormatError(f"Lark grammars with {what} (line {self._tokens[self._at][2]}) are not supported")

    def _directive(self) -> None:
        name = self._take()
        if name == "%import":
            self._import()
        elif name == "%ignore":
            self._in_terminal = True
            self._ignored.append(self._choice(0))
        elif name == "%llguidance" and self._text() == "{" and self._tokens[self._at + 1][1] == "}":
            self._at += 2
        else:
            self._at -= 1
            self._refuse(name)
        self._end_of_line()

    def _import(self) -> None:
        if self._take() != "common":
            self._at -= 1
            self._fail("only 'common' can be imported")
        several = self._text() == "("
        if several:
            self._take("(")
        else:
            self._take(".")
        while True:
            name = self._take()
            if name not in _COMMON:
                self._at -= 1
                self._fail("a terminal of 'common' expected")
            own = name
            if not several and self._text() == "->":
                self._take("->")
                own = self._take()
            self._define(own, regex_nodes.parse(_COMMON[name], "", self._characters))
            if not several:
                return
            if self._text() == ")":
                self._take(")")
                return
            self._take(",")

    def _define(self, name: str, node: Node) -> None:
        if name in self._rules:
            raise FormatError(f"bad Lark grammar: {name!r} is defined twice")
        if len(self._rules) == _MAX_RULES:
            raise FormatError(f"the grammar is too large: over {_MAX_RULES} rules")
        self._rules[name] = node

    def _definition(self) -> None:
        if self._kind() != "name":
            self._fail("a rule begins with its name")
        name = self._take().lstrip("?!")
        if self._text() == ".":
            self._take(".")
            if self._kind() != "number":
                self._fail("a priority expected")
            self._at += 1
        if self._text() == "[":
            self._refuse("attributes of rules")
        if self._text() == "{":
            self._refuse("templates")
        self._take(":")
        self._in_terminal = is_terminal(name)
        self._define(name, self._choice(0))
        self._end_of_line()

    def _end_of_line(self) -> None:
        if self._kind() not in ("line", "end"):
            self._fail("the end of the line expected")

    def _choice(self, depth: int) -> Node:
        if depth > _MAX_NESTING:
            raise FormatError("the grammar is nested too deeply")
        parts = [self._alternative(depth)]
        while self._next_bar(depth):
            self._take("|")
            parts.append(self._alternative(depth))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts), choice=True)

    def _next_bar(self, depth: int) -> bool:
        """True if another alternative follows, on a separate line or not."""
        at = self._at
        while self._tokens[at][0] == "line":
            at += 1
        if self._tokens[at][1] == "|" or depth:
            self._at = at
        return self._text() == "|"

    def _alternative(self, depth: int) -> Node:
        parts: list[Node] = []
        while True:
            if depth:
                while self._kind() == "line":
                    self._at += 1
            text, kind = self._text(), self._kind()
            if kind in ("line", "end") or text in ("|", ")", "]", "->"):
                break
            parts.append(self._counted(self._item(depth)))
        if self._text() == "->":
            self._take("->")
            if self._kind() != "name":
                self._fail("an alias expected")
            self._at += 1
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _item(self, depth: int) -> Node:
        kind, text = self._kind(), self._text()
        if kind == "string":
            self._at += 1
            if self._text() == "..":
                self._take("..")
                if self._kind() != "string":
                    self._fail("the end of a range expected")
                return self._range(text, self._take())
            return self._string(text)
        if kind == "regex":
            self._at += 1
            pattern, _, flags = text[1:].rpartition("/")
            return self._anonymous(regex_nodes.parse(pattern, flags.replace("l", ""), self._characters))
        if kind == "name":
            if text[0] in "?!":
                self._fail("a part of a rule expected")
            self._at += 1
            if (
                self._text() == "{"
                and self._tokens[self._at + 1][0] != "number"
                and self._tokens[self._at + 1][1] != ","
            ):
                self._refuse("templates")
            return Rule(text)
        if text in ("(", "["):
            self._at += 1
            node = self._choice(depth + 1)
            self._take(")" if text == "(" else "]")
            return node if text == "(" else Repeat(node, 0, 1)
        if text in ("~", "&"):
            self._refuse("'&' and '~' of terminals")
        if text in ("<", "@") or kind == "directive":
            self._refuse(f"{text!r}")
        self._fail("a part of a rule expected")

    def _counted(self, node: Node) -> Node:
        text = self._text()
        if text in ("*", "+", "?"):
            self._at += 1
            return Repeat(node, int(text == "+"), 1 if text == "?" else None)
        if text == "&":
            self._refuse("'&' and '~' of terminals")
        if text not in ("~", "{"):
            return node
        self._at += 1
        least = self._number(default=0 if text == "{" and self._text() == "," else None)
        most: int | None = least
        if text == "~" and self._text() == "..":
            self._take("..")
            most = self._number()
        elif text == "{":
            if self._text() == ",":
                self._take(",")
                most = None if self._text() == "}" else self._number()
            self._take("}")
        if most is not None and most < least:
            self._fail("a count whose end comes before its beginning")
        return Literal("") if most == 0 else Repeat(node, least, most)

    def _number(self, default: int | None = None) -> int:
        if default is not None:
            return default
        if self._kind() != "number" or self._text()[0] == "-":
            self._fail("a count expected")
        text = self._take()
        if len(text) > 6 or int(text) > _MAX_COUNT:
            raise FormatError(f"the grammar is too large: a part is repeated over {_MAX_COUNT} times")
        return int(text)

    def _string(self, token: str) -> Node:
        any_case = token.endswith("i")
        text = self._unescaped(token[1 : -2 if any_case else -1])
        if not any_case:
            return Literal(text)
        parts = []
        for char in text:
            ranges = regex_nodes.merged(regex_nodes.with_cases([(ord(char), ord(char))], wide=False))
            parts.append(Literal(char) if len(ranges) == 1 else CharSet(tuple(ranges), negated=False))
        return self._anonymous(Sequence(tuple(parts)))

    def _anonymous(self, node: Node) -> Node:
        """A terminal of its own where it stands in a rule: nothing is ignored within."""
        if self._in_terminal or isinstance(node, Literal | CharSet):
            return node
        name = f"REGEX-{len(self._rules)}"
        self._define(name, node)
        return Rule(name)

    def _range(self, first: str, last: str) -> Node:
        ends = [self._unescaped(token[1:-1]) for token in (first, last) if token[-1] == '"']
        if len(ends) != 2 or any(len(end) != 1 for end in ends) or ends[0] > ends[1]:
            self._at -= 1
            self._fail("a range of one character to a later one expected")
        return CharSet(((ord(ends[0]), ord(ends[1])),), negated=False)

    def _unescaped(self, text: str) -> str:
        def char(found: re.Match[str]) -> str:
            code = found[1] or found[2] or found[3] or found[4]
            if code is None and found[5] not in _ESCAPES:
                self._at -= 1
                self._fail(f"unknown escape \\{found[5]}")
            if code is not None and int(code, 16) > regex_nodes.LAST:
                self._fail("an escape that is no character")
            return _ESCAPES[found[5]] if code is None else chr(int(code, 16))

        text = _STRING_ESCAPE.sub(char, text)
        if any("\ud800" <= one <= "\udfff" for one in text):
            self._fail("half a surrogate pair")
        return text

    def _with_ignored(self) -> dict[str, Node]:
        """The rules with what `%ignore` names before each of their terminals. At the text's end it is left out."""
        name = "ignored"
        while name in self._rules:
            name += "_"
        rules: dict[str, Node] = {
            rule: node if is_terminal(rule) else _led_by(Rule(name), node) for rule, node in self._rules.items()
        }
        ignored = self._ignored[0] if len(self._ignored) == 1 else Sequence(tuple(self._ignored), choice=True)
        for other in uses(ignored):
            if other not in rules:
                raise FormatError(f"bad Lark grammar: '%ignore' names {other!r}, which is not defined")
        return {**rules, name: Repeat(ignored, 0, None)}


def _led_by(ignored: Node, node: Node) -> Node:
    match node:
        case Rule(name) if not is_terminal(name):
            return node
        case Sequence(parts, choice):
            return Sequence(tuple(_led_by(ignored, part) for part in parts), choice)
        case Repeat(part, least, most):
            return Repeat(_led_by(ignored, part), least, most)
    return Sequence((ignored, node))


def _tokens(text: str) -> list[tuple[str, str, int]]:
    """The tokens of a grammar as (kind, text, line), with the end."""
    found = []
    at, line = 0, 1
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise FormatError(f"bad Lark grammar, line {line}: unexpected {shown(text[at])}")
        if token.lastgroup != "space":
            found.append((str(token.lastgroup), token[0], line))
        line += token[0].count("\n")
        at = token.end()
    return [*found, ("end", "", line)]
