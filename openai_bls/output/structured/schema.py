"""JSON schemas: read, checked and brought to one normal form that both grammar libraries read alike.

The normal form knows no drafts: references point into `$defs` only, patterns are plain and anchored, `items` is one
schema, keywords that say nothing (annotations, keywords of other types than `type` has) are gone.

Three choices where a schema leaves a choice; all narrow what is generated, so that it validates all the same:

- an object that declares properties and says nothing of others gets no others, as in OpenAI's strict mode. Not
  where schemas are combined (`allOf`, keywords beside `$ref` or `anyOf`), as each may declare some of them;
- a schema without `type` whose keywords speak of one type is of that type;
- properties come in the order in which they are declared.
"""

from __future__ import annotations

import math
import re
from typing import Any
from urllib.parse import unquote

from openai_bls.output.structured import keywords, leaves
from openai_bls.output.structured.errors import FormatError, shown
from openai_bls.output.structured.leaves import Place

Schema = dict[str, Any]

# Whatever is referenced is read anew for each way to combine it.
_MAX_NODES = 20_000
# Of all patterns in plain form, which is much longer than what a client writes as `\W`.
_MAX_PATTERN_CHARS = 512 * 1024
_INDEX = re.compile(r"[0-9]{1,9}")


def normal_form(schema: Any) -> Schema:
    """A schema's normal form. Its nesting must be bounded already.

    Raises:
        FormatError: it is no JSON schema, or has what cannot be enforced; the message names the keyword and the place.
    """
    return _Reader(schema).read_all()


class _Reader:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._nodes = 0
        self._pattern_chars = 0
        # By pointer and whether other schemas are combined with it: the name in `$defs`.
        self._names: dict[tuple[str, bool], str] = {}
        self._waiting: list[tuple[str, bool]] = []

    def read_all(self) -> Schema:
        found = self._read(self._root, Place(), False)
        definitions: Schema = {}
        while self._waiting:
            pointer, combined = self._waiting.pop()
            place = Place(*(step for step in pointer.split("/") if step != "#"))
            definitions[self._names[pointer, combined]] = self._read(self._target(pointer, place), place, combined)
        return {"$defs": definitions, **found} if definitions else found

    def _read(self, node: Any, place: Place, combined: bool) -> Schema:
        """The normal form of one schema.

        Args:
            node: it.
            place: where.
            combined: whether an instance must match other schemas as well.
        """
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise FormatError(f"the schema is too large: over {_MAX_NODES} parts")
        if isinstance(node, bool):
            return {} if node else {"enum": []}
        if not isinstance(node, dict):
            raise FormatError(f"a JSON schema is an object, not {shown(node)}{place}")
        node = {key: value for key, value in node.items() if not _says_nothing(key, value, place)}
        types = leaves.types_of(node, place)
        node = _of_types(node, types)
        self._check(node, place)
        if not types and not combined and not any(key in node for key in (*keywords.APPLICATORS, *keywords.VALUES)):
            spoken_of = [name for name, keys in keywords.OF_TYPE.items() if any(key in node for key in keys)]
            types = spoken_of if len(spoken_of) == 1 else types
        combined = combined or _combines(node)
        found: Schema = {}
        if len(types) == 1:
            found["type"] = types[0]
        elif types:
            found["type"] = types
        for key, value in node.items():
            match key:
                case "$ref":
                    found[key] = self._reference(value, place, combined)
                case "allOf" | "anyOf" | "oneOf":
                    both = combined or (key == "allOf" and len(leaves.array(node, key, place)) > 1)
                    parts = enumerate(leaves.array(node, key, place))
                    found[key] = [self._read(part, place / key / at, both) for at, part in parts]
        found |= leaves.enumerated(node, found, place)
        found |= leaves.bounds(node, types, place)
        found |= leaves.string_limits(node, place)
        self._written(found.get("pattern", ""))
        found |= self._array(node, place, combined)
        found |= self._object(node, types, place, combined)
        return found

    def _written(self, pattern: str) -> None:
        self._pattern_chars += len(pattern)
        if self._pattern_chars > _MAX_PATTERN_CHARS:
            raise FormatError(
                f"the schema's patterns are too large: over {_MAX_PATTERN_CHARS} characters when spelled out"
            )

    def _check(self, node: Schema, place: Place) -> None:
        """Refuse what has a keyword that cannot be enforced."""
        known = {"type", *keywords.APPLICATORS, *keywords.VALUES}.union(*keywords.OF_TYPE.values())
        for key, value in node.items():
            if key == "unevaluatedProperties" and value is False and not _combines(node) and not _applies(node):
                continue  # the same as additionalProperties then, and taken so below
            advice = keywords.REFUSED.get(key)
            if advice is not None:
                raise FormatError(f"the JSON schema keyword '{key}'{place} cannot be enforced: {advice}")
            if key not in known:
                raise FormatError(f"the JSON schema keyword '{_cut(key)}'{place} is not known here: leave it out")

    def _reference(self, pointer: Any, place: Place, combined: bool) -> str:
        if not isinstance(pointer, str):
            raise FormatError(f"'$ref' must be a string, not {shown(pointer)}{place}")
        pointer = unquote(pointer)
        if pointer != "#" and not pointer.startswith("#/"):
            raise FormatError(
                f"'$ref': {shown(pointer)}{place} does not point into this schema ('#/...'), and none is ever fetched"
            )
        self._target(pointer, place)
        key = (pointer, combined)
        if key not in self._names:
            self._names[key] = str(len(self._names))
            self._waiting.append(key)
        return f"#/$defs/{self._names[key]}"

    def _target(self, pointer: str, place: Place) -> Any:
        node = self._root
        for raw in pointer.split("/")[1:]:
            step = raw.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and step in node:
                node = node[step]
            elif isinstance(node, list) and _INDEX.fullmatch(step) and int(step) < len(node):
                node = node[int(step)]
            else:
                raise FormatError(f"'$ref': {shown(pointer)}{place} points to nothing")
        return node

    def _array(self, node: Schema, place: Place, combined: bool) -> Schema:
        found: Schema = {}
        first, rest = node.get("prefixItems"), node.get("items")
        if isinstance(rest, list):  # up to draft 2019-09
            first, rest = rest, node.get("additionalItems")
        if first is not None:
            if not isinstance(first, list):
                raise FormatError(f"'prefixItems' must be an array of schemas, not {shown(first)}{place}")
            found["prefixItems"] = [
                self._read(part, place / "prefixItems" / at, combined) for at, part in enumerate(first)
            ]
        if rest is not None:
            found["items"] = self._read(rest, place / "items", combined)
        for key in ("minItems", "maxItems"):
            if key in node:
                found[key] = leaves.count(node, key, place)
        if found.get("minItems", 0) > found.get("maxItems", math.inf):
            raise FormatError(f"'minItems' is above 'maxItems'{place}")
        return found

    def _object(self, node: Schema, types: list[str], place: Place, combined: bool) -> Schema:
        found: Schema = {}
        properties = leaves.mapping(node, "properties", place)
        if properties:
            found["properties"] = {
                name: self._read(part, place / "properties" / name, combined) for name, part in properties.items()
            }
        for source, part in leaves.mapping(node, "patternProperties", place).items():
            where = place / "patternProperties" / source
            key = leaves.pattern(source, where)
            self._written(key)
            found.setdefault("patternProperties", {})[key] = self._read(part, where, combined)
        required = leaves.array(node, "required", place) if "required" in node else []
        if not all(isinstance(name, str) for name in required):
            raise FormatError(f"'required' must be an array of strings, not {shown(required)}{place}")
        if required:
            found["required"] = list(dict.fromkeys(required))
        for key in ("minProperties", "maxProperties"):
            if key in node:
                found[key] = leaves.count(node, key, place)
        others = node.get("additionalProperties", node.get("unevaluatedProperties"))
        if others is not None:
            found["additionalProperties"] = (
                others if others is False else self._read(others, place / "additionalProperties", combined)
            )
        elif not combined and ("properties" in node or "patternProperties" in node) and _sufficient(found):
            found["additionalProperties"] = False
        _check_counts(found, place)
        return found


def _sufficient(node: Schema) -> bool:
    """Whether an object can do with the properties that are declared."""
    declared = node.get("properties", {})
    if not all(name in declared for name in node.get("required", ())):
        return False
    return "patternProperties" in node or bool(node.get("minProperties", 0) <= len(declared))


def _check_counts(node: Schema, place: Place) -> None:
    least = node.get("minProperties", 0)
    required = len(node.get("required", ()))
    if least > node.get("maxProperties", math.inf):
        raise FormatError(f"'minProperties' is above 'maxProperties'{place}")
    if least <= required:
        node.pop("minProperties", None)
    elif least > required + 1 and node.get("additionalProperties") is not False:
        raise FormatError(
            f"'minProperties': {least}{place} cannot be enforced where names are free, as they may come twice: "
            "list the properties and set 'additionalProperties': false"
        )
    elif least > required + 1 and "patternProperties" in node:
        raise FormatError(
            f"'minProperties': {least}{place} cannot be enforced beside 'patternProperties', whose names may come twice"
        )


def _says_nothing(key: Any, value: Any, place: Place) -> bool:
    if not isinstance(key, str):
        raise FormatError(f"the names in a JSON schema are strings{place}")
    if key in keywords.ANNOTATIONS or key.startswith("x-"):
        return True
    if key in ("$id", "id") and isinstance(value, str):
        if str(place):
            raise FormatError(f"the JSON schema keyword '{key}'{place} is supported in the outermost schema only")
        return True
    neutral: dict[str, tuple[Any, ...]] = {
        "uniqueItems": (False,),
        "nullable": (False,),
        "propertyNames": (True, {}, {"type": "string"}),
        "dependentRequired": ({},),
        "dependentSchemas": ({},),
        "dependencies": ({},),
        "unevaluatedProperties": (True, {}),
        "unevaluatedItems": (True, {}),
    }
    return any(value == nothing and type(value) is type(nothing) for nothing in neutral.get(key, ()))


def _of_types(node: Schema, types: list[str]) -> Schema:
    """The schema without the keywords that speak of types which it does not allow."""
    if not types:
        return node
    spoken_of = {"number" if name == "integer" else name for name in types}
    idle = {key for name, keys in keywords.OF_TYPE.items() if name not in spoken_of for key in keys}
    # An array of at most one item has no two that are equal.
    most = node.get("maxItems")
    if node.get("uniqueItems") is True and isinstance(most, int) and most <= 1:
        idle.add("uniqueItems")
    return {key: value for key, value in node.items() if key not in idle}


def _applies(node: Schema) -> bool:
    return any(key in node for key in keywords.APPLICATORS)


def _combines(node: Schema) -> bool:
    """Whether properties may be declared in several of the schema's parts."""
    applicators = sum(key in node for key in keywords.APPLICATORS)
    rest = any(key not in ("type", *keywords.APPLICATORS) for key in node)
    return applicators > 1 or (applicators == 1 and rest)


def _cut(key: str) -> str:
    return key if len(key) <= 60 else key[:59] + "…"
