"""JSON schema of the API's structs, with the docstrings of their fields and what is said of unsupported ones."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from inspect import cleandoc
from typing import Any, Literal

import msgspec.inspect as mi
from msgspec import NODEFAULT, UNSET

from openai_bls.api.chat.schema import ENGINE_FIELDS, ChatCompletionRequest, Generation
from openai_bls.api.common.documented import DOCUMENTED, is_per_token
from openai_bls.api.common.fields import without_effect
from openai_bls.api.common.unsupported import Unsupported
from openai_bls.api.openapi.field_docs import field_docs

Schema = dict[str, Any]
Refusals = Mapping[Any, Mapping[str, Unsupported]]
Verdict = Literal["honoured", "engine", "without effect", "neutral", "refused"]

REF = "#/components/schemas/"
_WITHOUT_EFFECT = "No effect on the answer."
_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
}


def verdict(cls: Any, field: str, refusals: Refusals) -> Verdict:
    """Verdict on a field, as docs/api.md explains them."""
    cls = getattr(cls, "__origin__", cls)
    unsupported = refusals.get(cls, {}).get(field)
    if unsupported is not None:
        return "neutral" if unsupported.values else "refused"
    if field in without_effect(cls) or field_docs(cls).get(field, "").startswith("No effect"):
        return "without effect"
    return "engine" if issubclass(cls, Generation) and field in ENGINE_FIELDS else "honoured"


def is_passed_on(field: mi.Field) -> bool:
    """True if it is a field of chat completions that another API hands on as it is."""
    return isinstance(field.type, mi.AnyType) and field.encode_name in ChatCompletionRequest.__struct_fields__


class SchemaBuilder:
    """Builder of the schemas of types and of the components to which they refer.

    Args:
        types: every type that will be asked for.
        refusals: unsupported fields of structs.
        optional_tags: structs whose tag may be left out.
        max_items: largest length of arrays with the mark `PER_TOKEN`; None leaves it out.
    """

    def __init__(
        self,
        types: Iterable[Any],
        refusals: Refusals,
        optional_tags: Collection[Any] = (),
        max_items: int | None = None,
    ) -> None:
        self._max_items = max_items
        self._refusals = refusals
        self._optional_tags = optional_tags
        self._structs: dict[Any, mi.StructType] = {}
        self._in_unions: set[Any] = set()
        self._collect(mi.multi_type_info([*types, ChatCompletionRequest]))
        self._names = _names(self._structs)

    def schema(self, kind: Any) -> Schema:
        """Schema of one of the types."""
        return self._schema(mi.type_info(kind))

    def components(self, without: Collection[Any] = ()) -> dict[str, Schema]:
        """Schemas of all structs but some, by name."""
        return {self._names[cls]: self._struct(struct) for cls, struct in self._structs.items() if cls not in without}

    def fields(self, cls: Any) -> dict[str, Schema]:
        """Schemas of a struct's fields."""
        properties: dict[str, Schema] = self._struct(self._structs[cls])["properties"]
        return properties

    def _collect(self, kinds: Iterable[mi.Type]) -> None:
        for kind in kinds:
            if isinstance(kind, mi.StructType):
                if kind.cls not in self._structs:
                    self._structs[kind.cls] = kind
                    self._collect(field.type for field in kind.fields)
            elif isinstance(kind, mi.Metadata):
                documented = (kind.extra or {}).get(DOCUMENTED, UNSET)
                self._collect([kind.type if documented is UNSET else mi.type_info(documented)])
            elif isinstance(kind, mi.UnionType):
                structs = [member for member in kind.types if isinstance(member, mi.StructType)]
                if len(structs) > 1:
                    self._in_unions.update(struct.cls for struct in structs)
                self._collect(kind.types)
            elif isinstance(kind, mi.DictType):
                self._collect([kind.value_type])
            elif isinstance(kind, mi.CollectionType):
                self._collect([kind.item_type])

    def _schema(self, kind: mi.Type) -> Schema:  # noqa: PLR0911
        match kind:
            case mi.Metadata():
                documented = (kind.extra or {}).get(DOCUMENTED, UNSET)
                inner = kind.type if documented is UNSET else mi.type_info(documented)
                schema = {**self._schema(inner), **_portable(kind.extra_json_schema or {})}
                return self._bounded(schema) if is_per_token(kind.extra) else schema
            case mi.StructType():
                return {"$ref": REF + self._names[kind.cls]}
            case mi.UnionType():
                return self._union(kind)
            case mi.LiteralType():
                return {"type": _json_type(kind.values[0]), "enum": list(kind.values)}
            case mi.DictType():
                value = self._schema(kind.value_type)
                keys = self._schema(kind.key_type)
                named = {"propertyNames": keys} if len(keys) > 1 else {}
                return {"type": "object", **_sizes(kind, "Properties"), **named} | (
                    {"additionalProperties": value} if value else {}
                )
            case mi.CollectionType():
                return {"type": "array", "items": self._schema(kind.item_type), **_sizes(kind, "Items")}
            case mi.NoneType():
                return {"type": "null"}
            case mi.BoolType():
                return {"type": "boolean"}
            case mi.IntType():
                return {"type": "integer", **_bounds(kind)}
            case mi.FloatType():
                return {"type": "number", **_bounds(kind)}
            case mi.StrType():
                return {"type": "string", **_bounds(kind)}
            case mi.BytesType():
                return {"type": "string", "format": "binary"}
        return {}

    def _bounded(self, schema: Schema) -> Schema:
        """A schema whose arrays have at most `max_items`."""
        if "anyOf" in schema:
            return {**schema, "anyOf": [self._bounded(member) for member in schema["anyOf"]]}
        if self._max_items is None or "items" not in schema:
            return schema
        return {**schema, "maxItems": min(self._max_items, schema.get("maxItems", self._max_items))}

    def _union(self, union: mi.UnionType) -> Schema:
        schemas = [self._schema(member) for member in union.types]
        structs = [member for member in union.types if isinstance(member, mi.StructType)]
        if len(structs) > 1 and structs[0].tag_field is not None:
            refs = {tag: REF + self._names[struct.cls] for struct in structs for tag in _tags(struct)}
            one: Schema = {
                "oneOf": [{"$ref": ref} for ref in dict.fromkeys(refs.values())],
                "discriminator": {"propertyName": structs[0].tag_field, "mapping": refs},
            }
            others = [schema for schema in schemas if schema.get("$ref") not in refs.values()]
            schemas = [*others, one]
        without_null = [schema for schema in schemas if schema != {"type": "null"}]
        if len(without_null) == len(schemas):
            return {"anyOf": schemas} if len(schemas) > 1 else schemas[0]
        if len(without_null) == 1 and isinstance(without_null[0].get("type"), str):
            (schema,) = without_null
            nullable = {**schema, "type": [schema["type"], "null"]}
            return nullable if "enum" not in schema else {**nullable, "enum": [*schema["enum"], None]}
        return {"anyOf": [*without_null, {"type": "null"}]}

    def _struct(self, struct: mi.StructType) -> Schema:
        properties: dict[str, Schema] = {}
        required = []
        if struct.tag_field is not None:
            tags = _tags(struct)
            value: Schema = {"const": tags[0]} if len(tags) == 1 else {"enum": list(tags)}
            properties[struct.tag_field] = {"type": "string", **value}
            if struct.cls in self._in_unions and struct.cls not in self._optional_tags:
                required.append(struct.tag_field)
        docs = field_docs(getattr(struct.cls, "__origin__", struct.cls))
        for field in sorted(struct.fields, key=lambda field: self._rank(struct.cls, field)):
            properties[field.encode_name] = self._field(struct.cls, field, docs.get(field.name, ""))
            if field.required:
                required.append(field.encode_name)
        for name in sorted(getattr(struct.cls, "WITHOUT_EFFECT", ())):
            properties[name] = {"description": _WITHOUT_EFFECT}
        origin = getattr(struct.cls, "__origin__", struct.cls)
        schema: Schema = {"type": "object", "description": _first_paragraph(origin), "properties": properties}
        if required:
            schema["required"] = required
        if struct.forbid_unknown_fields and not getattr(struct.cls, "FROM_A_SERVER", False):
            schema["additionalProperties"] = False
        return schema

    def _rank(self, cls: Any, field: mi.Field) -> int:
        """Place among a struct's fields: those that must be there first, those that change nothing last."""
        place: dict[Verdict, int] = {"without effect": 1, "neutral": 2, "refused": 3}
        return -1 if field.required else place.get(verdict(cls, field.encode_name, self._refusals), 0)

    def _field(self, cls: Any, field: mi.Field, doc: str) -> Schema:
        name = field.encode_name
        unsupported = self._refusals.get(cls, {}).get(name)
        if unsupported is not None:
            return _unsupported(unsupported)
        if is_passed_on(field) and cls is not ChatCompletionRequest:
            return self._chat_fields[name]
        schema = self._schema(field.type)
        judged = verdict(cls, name, self._refusals)
        if judged == "without effect" and not doc.startswith("No effect"):
            doc = f"{_WITHOUT_EFFECT} {doc}".strip()
        elif judged == "engine":
            doc = f"{doc} Refused where the engine does not do it.".strip()
        if doc:
            schema["description"] = doc
        if field.default not in (NODEFAULT, None):
            schema["default"] = field.default
        return schema

    @functools.cached_property
    def _chat_fields(self) -> dict[str, Schema]:
        return self.fields(ChatCompletionRequest)


def _unsupported(field: Unsupported) -> Schema:
    """A field that is taken at the values at which it changes nothing."""
    allowed = " or ".join(f"`{json.dumps(value)}`" for value in (*field.values, None))
    description = f"Not supported: {field.advice}. It may be left out, or be {allowed}."
    if not field.values:
        return {"type": "null", "description": description}
    return {"enum": [*field.values, None], "description": description}


def _bounds(kind: Any) -> Schema:
    found = {there: getattr(kind, here, None) for here, there in _BOUNDS.items()}
    return {**_portable({name: value for name, value in found.items() if value is not None})}


def _sizes(kind: Any, what: str) -> Schema:
    sizes = {f"min{what}": kind.min_length, f"max{what}": kind.max_length}
    return {name: size for name, size in sizes.items() if size is not None}


def _portable(value: Any) -> Any:
    r"""A schema whose patterns are ECMA-262's, which has no \Z."""
    if isinstance(value, dict):
        return {name: _portable(item) for name, item in value.items()}
    return re.sub(r"\\Z$", "$", value) if isinstance(value, str) else value


def _json_type(value: Any) -> str:
    return {str: "string", bool: "boolean", int: "integer"}[type(value)]


def _first_paragraph(cls: type[Any]) -> str:
    return " ".join(cleandoc(cls.__doc__ or "").split("\n\n")[0].split())


def _names(classes: Iterable[Any]) -> dict[Any, str]:
    """Name of each struct among the components: its own, with the API's where two have the same."""

    def forms(cls: Any) -> tuple[str, str, str]:
        origin = getattr(cls, "__origin__", cls)
        *_, folder, module = origin.__module__.split(".")
        arguments = "".join(argument.__name__ for argument in getattr(cls, "__args__", ()))
        own = origin.__name__ + arguments
        place = folder.title() + "".join(word.title() for word in module.split("_"))
        return own, folder.title() + own, place + own

    all_forms = {cls: forms(cls) for cls in classes}
    taken = [Counter(one[level] for one in all_forms.values()) for level in range(3)]
    names = {
        cls: next((form for form, counts in zip(one, taken, strict=True) if counts[form] == 1), one[-1])
        for cls, one in all_forms.items()
    }
    assert len(set(names.values())) == len(names)
    return names


def _tags(struct: mi.StructType) -> tuple[str, ...]:
    """Values of a struct's tag: that of its own, or those in its `TAGS`."""
    tags: tuple[str, ...] = getattr(struct.cls, "TAGS", (str(struct.tag),))
    return tags
