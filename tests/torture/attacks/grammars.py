"""Attacks by what a grammar costs: numbers in schemas, counts, choices of choices, expressions, many different ones."""

from __future__ import annotations

import itertools
import random
from typing import Any

from tests.torture.attacks.alice import Alice

_REMAINDERS = 65_536
"""Bound of `multipleOf`."""
_ASKERS = 8
_PRIMES = (7, 97, 997, 9973, 32_749, 65_521, 65_537, 99_991, 999_983, 15_485_863)


def _object(properties: dict[str, Any], **further: Any) -> dict[str, Any]:
    names = list(properties)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False, **further}


def _multiples(rng: random.Random) -> Any:
    numbers = [*_PRIMES, _REMAINDERS - 1, _REMAINDERS, _REMAINDERS + 1, 10**8, 0.0001, 0.37, 1e-9, 2**53 - 1]
    return {"type": rng.choice(["integer", "number"]), "multipleOf": rng.choice(numbers)}


def _many_multiples(rng: random.Random) -> Any:
    return _object({f"p{at}": _multiples(rng) for at in range(rng.choice([2, 8, 64]))})


def _ranges(rng: random.Random) -> Any:
    digits = rng.choice([1, 5, 15, 16, 30, 300])
    low, high = sorted(rng.choice([1, -1]) * rng.randrange(10**digits) for _ in range(2))
    bounds = rng.choice([("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")])
    scale = rng.choice([1, 1, 1e-3]) if digits < 300 else 1
    return {"type": "number" if scale != 1 else "integer", bounds[0]: low * scale, bounds[1]: high * scale}


def _counts(rng: random.Random) -> Any:
    most = rng.choice([10, 100, 1000, 10_000, 10**6, 2**31])
    least = rng.choice([0, 1, most // 2, most])
    inner = rng.choice([{"type": "integer"}, {"type": "string", "maxLength": most}, _ranges(rng)])
    return rng.choice([
        {"type": "array", "items": inner, "minItems": least, "maxItems": most},
        {"type": "string", "minLength": least, "maxLength": most},
        {"type": "object", "additionalProperties": inner, "minProperties": least, "maxProperties": most},
        {"type": "array", "prefixItems": [inner] * min(most, 2000), "items": False},
    ])  # fmt: skip


def _choices(rng: random.Random) -> Any:
    """Objects of a few properties each in which the choices begin alike, so that all are open at the same time."""
    widths = [rng.choice([2, 6, 12, 30]) for _ in range(rng.choice([1, 2, 3]))]
    made: Any = {"type": "string"}
    for width in widths:
        made = {"anyOf": [_object({"a": made, f"p{at}": {"type": "integer"}}) for at in range(width)]}
    return made


def _words(rng: random.Random) -> Any:
    count, begin = rng.choice([10, 1000, 10_000, 50_000]), rng.choice(["", "a" * 50])
    return {"enum": [f"{begin}{at}" for at in range(count)]}


def _properties(rng: random.Random) -> Any:
    count = rng.choice([10, 200, 2000, 10_000])
    made = _object({f"p{at}": rng.choice([{"type": "string"}, True, {"$ref": "#"}]) for at in range(count)})
    return made if rng.random() < 0.5 else {**made, "required": []}


def _depth(rng: random.Random) -> Any:
    made: Any = {"type": "string"}
    for _ in range(rng.choice([5, 50, 60, 70, 500])):
        made = _object({"a": made}) if rng.random() < 0.5 else {"type": "array", "items": made}
    return made


def _references(rng: random.Random) -> Any:
    count = rng.choice([2, 20, 200])
    names = [f"d{at}" for at in range(count)]
    definitions = {}
    for name in names:
        chosen = {"anyOf": [{"$ref": f"#/$defs/{other}"} for other in rng.sample(names, min(count, 8))]}
        definitions[name] = rng.choice([_object({"a": chosen}), chosen])
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def _alternatives(rng: random.Random) -> Any:
    """Alternatives that exclude one another by what takes long to find out."""
    count, size = rng.choice([2, 20, 150, 200]), rng.choice([1, 20, 150])
    names = [f"{at}" for at in range(size)]
    return rng.choice([
        {"oneOf": [{"enum": list(range(at * size, (at + 1) * size))} for at in range(count)]},
        {"oneOf": [_object({name: {"const": f"{at}"} for name in names[: size // 10 + 1]}) for at in range(count)]},
        {"oneOf": [{"type": "object", "required": names} for _ in range(count)]},
    ])  # fmt: skip


def _constants(rng: random.Random) -> Any:
    values = [0] * rng.choice([1, 1000, 50_000])
    made: Any = rng.choice([{"const": values, "enum": values}, {"enum": values}, {"const": values}])
    for _ in range(rng.choice([0, 3, 40])):
        made = {"id": "x", "type": "array", "items": made}
    return made


def _tag(rng: random.Random) -> Any:
    """A structural tag of many triggers and excluded words."""
    count, excluded = rng.choice([1, 100, 1000, 3000]), rng.choice([0, 10, 3000])
    tags = [{"begin": f"<{at}>", "content": {"type": "regex", "pattern": "a"}, "end": ">"} for at in range(count)]
    excludes = [f"{at:020}" for at in range(excluded)]
    triggers = [tag["begin"] for tag in tags]
    return {"format": {"type": "triggered_tags", "triggers": triggers, "tags": tags, "excludes": excludes}}


def _input_grammar(rng: random.Random) -> dict[str, str]:
    """The grammar of a custom tool's input."""
    count, last = rng.choice([10, 1000, 9000]), chr(0x9C00)
    piece = rng.choice([" a", " a?", " (a a a)", " a{0,9}", f" /[\u4e00-{last}]/i", " /[^\\w]/", ' | "x" a'])
    definition = ("start: a" + piece * count)[:60_000].rpartition(" ")[0] + '\na: "x" | "(" start ")" | /[a-z\\n]+/\n'
    return {"syntax": "lark", "definition": definition}


def _patterns(rng: random.Random) -> Any:
    return {"type": "string", "pattern": _expression(rng)}


def _expression(rng: random.Random) -> str:
    count = rng.choice([10, 100, 1000, 100_000])
    return rng.choice([
        f"^(a{{0,{count}}}){{0,{count}}}$",
        f"^[a-z]{{{count}}}$",
        f"^(.*a.*){{{min(count, 1000)}}}$",
        "^(" + "|".join(f"x{at}[0-9]+y" for at in range(min(count, 5000))) + ")$",
        f"^(.*a.{{{count}}})$",
        "^" + "(a|" * min(count, 2000) + "b" + ")*" * min(count, 2000) + "$",
        f"^\\p{{L}}{{1,{count}}}$",
    ])  # fmt: skip


def _lark(rng: random.Random) -> str:
    count = rng.choice([10, 1000, 10_000])
    return rng.choice([
        "start: " + " ".join(f"r{at}?" for at in range(count)) + "\n" + "\n".join(f'r{at}: "a"' for at in range(count)),
        "start: start start | start | \"a\"",
        f"start: /a{{0,{count}}}b?/{{1,{count}}}",
        "start: " + "(" * count + '"a"' + ")*" * count,
    ])  # fmt: skip


_SCHEMAS = (
    _multiples,
    _many_multiples,
    _ranges,
    _counts,
    _choices,
    _words,
    _properties,
    _depth,
    _references,
    _alternatives,
    _constants,
    _patterns,
)


def _constraint(rng: random.Random, name: str) -> dict[str, Any]:
    way = rng.randint(0, 15)
    if way == 0:
        return {"structured_outputs": {"regex": _expression(rng).strip("^$")}}
    if way == 1:
        return {"structured_outputs": {"grammar": _lark(rng)}}
    if way == 3:
        return {"structured_outputs": {"structural_tag": _tag(rng)}}
    if way in (4, 5):
        custom = {"name": name, "format": {"type": "grammar", "grammar": _input_grammar(rng)}}
        return {"tools": [{"type": "custom", "custom": custom}], "tool_choice": "required"}
    # None has been seen before.
    schema = _object({name: rng.choice(_SCHEMAS)(rng)}, **({"$defs": {}} if rng.random() < 0.1 else {}))
    if way == 2:
        function = {"name": "f", "parameters": schema, "strict": True}
        return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}}


def grammars(alice: Alice) -> None:
    """Different grammars, several at once, by clients of which some leave early."""
    numbers = itertools.count()

    def attack() -> None:
        while not alice.over():
            constraint = _constraint(alice.rng, f"n{next(numbers)}")
            alice.note(str(constraint)[:300])
            body = {"messages": [{"role": "user", "content": "JSON"}], "max_tokens": 20, **constraint}
            alice.post("/v1/chat/completions", body, alice.rng.choice([0.3, None, None]))

    alice.at_once([attack] * _ASKERS)


def small_grammars(alice: Alice) -> None:
    """Very many schemas, each of which is cheap."""
    numbers = itertools.count()

    def attack() -> None:
        while not alice.over():
            schema = _object({f"n{next(numbers)}": {"enum": ["a", "b"]}})
            format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            body = {"messages": [{"role": "user", "content": "JSON"}], "max_tokens": 20, "response_format": format_}
            alice.post("/v1/chat/completions", body)

    alice.note("schemas of one enum, each another")
    alice.at_once([attack] * alice.rng.choice([_ASKERS, 4 * _ASKERS]))
