"""Reference page at /docs: the OpenAPI document as HTML, with the files of the other pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from openai_bls.api.openapi.json_schema import REF, Schema
from openai_bls.api.openapi.page_start import ORIGIN, figure, start


def page(document: dict[str, Any], served: Mapping[str, Sequence[str]]) -> bytes:
    """The page.

    Args:
        document: description that `openapi.document` makes.
        served: name → tasks of the served models, the default first.
    """
    html = _TEMPLATE.format(
        title=escape(document["info"]["title"]),
        version=escape(document["info"]["version"]),
        start="".join(start(document, served)),
        description=_prose(document["info"]["description"]),
        contents="".join(_contents(document)),
        operations="".join(_operations(document, next(iter(served), None))),
    )
    return html.encode()


_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: API reference</title>
<link rel="icon" href="static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="static/base.css">
<link rel="stylesheet" href="static/reference.css">
<script src="static/theme.js"></script>
<script type="module" src="static/reference.js"></script>
</head>
<body>
<nav aria-label="Endpoints"><h1>{title} {version}</h1>
<p><a href="./">Playground</a> · <a href="openapi.json">openapi.json</a></p>
<p><input type="search" id="filter" placeholder="Filter" aria-label="Filter" autocomplete="off">
<span id="filter-count" class="soft" role="status"></span></p>
<details open><summary>Endpoints</summary>{contents}</details></nav>
<main>{start}<p>{description}</p>{operations}</main>
</body>
</html>
"""


def _each(document: dict[str, Any], tag: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, method and operation, for the operations of a tag."""
    for path, item in document["paths"].items():
        yield from ((path, method, operation) for method, operation in item.items() if tag in operation["tags"])


def _contents(document: dict[str, Any]) -> Iterator[str]:
    for tag in document["tags"]:
        yield f"<h2>{escape(tag['name'])}</h2><ul>"
        for path, method, operation in _each(document, tag["name"]):
            if "description" not in operation:
                label = f'<span class="method">{method.upper()}</span>{_breakable(path)}'
                yield f'<li><a href="#{escape(operation["operationId"])}">{label}</a></li>'
        yield "</ul>"


def _breakable(path: str) -> str:
    """A path that a browser breaks before a slash, and not within a word."""
    return escape(path).replace("/", "<wbr>/")


def _operations(document: dict[str, Any], model: str | None) -> Iterator[str]:
    components = document["components"]["schemas"]
    for tag in document["tags"]:
        yield f"<h2>{escape(tag['name'])}</h2>"
        for path, method, operation in _each(document, tag["name"]):
            yield f'<section id="{escape(operation["operationId"])}">'
            yield f'<h3><span class="method">{method.upper()}</span><code>{_breakable(path)}</code></h3>'
            yield f"<p>{_prose(operation['summary'])}.</p>"
            if "description" in operation:
                yield f"<p>{_prose(operation['description'])}</p></section>"
                continue
            if "x-unserved" in operation:
                yield '<p class="soft">No model of this server serves it.</p>'
            else:
                has_keys = "security" in document
                yield _curl(_filled(path, None if has_keys else model), method, operation, has_keys=has_keys)
            yield "<details><summary>Fields and answers</summary>"
            yield from _parameters(operation)
            for content in operation.get("requestBody", {}).get("content", {}).values():
                yield "<h4>Request body</h4>"
                yield from _type(content["schema"], components, ())
            yield from _responses(operation, components)
            yield "</details></section>"


def _filled(path: str, model: str | None) -> str:
    """A path with a value in place of each parameter; curl has a meaning of its own for braces."""
    if model is not None:
        path = path.replace("{model}", model)
    return re.sub(r"\{(\w+)\}", lambda parameter: parameter[1].upper(), path)


def _curl(path: str, method: str, operation: dict[str, Any], *, has_keys: bool) -> str:
    words = [f"curl {ORIGIN}{path}"]
    request = {"method": method.upper(), "path": path}
    if method not in ("get", "post"):
        words.append(f"-X {method.upper()}")
    if has_keys and operation.get("security") is None:
        words.append('-H "Authorization: Bearer $OPENAI_API_KEY"')
        request["keys"] = ""
    contents = operation.get("requestBody", {}).get("content", {})
    content = contents.get("application/json")
    if "multipart/form-data" in contents:
        words += [f"-F {name}={value}" for name, value in contents["multipart/form-data"]["example"].items()]
    elif content is not None:
        body = json.dumps(content.get("example", {}), ensure_ascii=False, indent=2)
        request["body"] = body
        quoted = body.replace("'", "'\\''")
        words += ["-H 'Content-Type: application/json'", f"-d '{quoted}'"]
    elif method == "post":
        words.append("-X POST")
    # A form takes a file of the visitor's machine.
    return figure(" \\\n  ".join(words), None if "multipart/form-data" in contents else request)


def _parameters(operation: dict[str, Any]) -> Iterator[str]:
    if "parameters" in operation:
        yield "<h4>Parameters</h4><dl>"
        for parameter in operation["parameters"]:
            doc = _prose(parameter["schema"].get("description", ""))
            of = f"in the {parameter['in']}, {_kind(parameter['schema'])}"
            yield f'<dt><code>{escape(parameter["name"])}</code> <span class="soft">{of}</span></dt><dd>{doc}</dd>'
        yield "</dl>"


def _responses(operation: dict[str, Any], components: dict[str, Schema]) -> Iterator[str]:
    yield "<h4>Answers</h4>"
    shown = set()
    for status, response in operation["responses"].items():
        yield f"<p><code>{status}</code> {_prose(response['description'])}</p>"
        for kind, content in response.get("content", {}).items():
            schema = content.get("x-event-schema", content.get("schema", {}))
            key = json.dumps(schema)
            if key not in shown and schema != {"type": "string"}:
                shown.add(key)
                yield f"<details><summary><code>{escape(kind)}</code></summary>"
                yield from _type(schema, components, ())
                yield "</details>"


def _type(schema: Schema, components: dict[str, Schema], above: tuple[str, ...]) -> Iterator[str]:
    """The fields of the structs in a schema; those of the structs in these can be unfolded."""
    for name in _structs(schema):
        if name in above:
            continue
        struct = components[name]
        required = struct.get("required", ())
        yield f'<p class="soft">{_prose(struct["description"])}</p><dl>'
        for field, kind in struct["properties"].items():
            needed = ", required" if field in required else ""
            described = f'<code>{escape(field)}</code> <span class="soft">{_kind(kind)}{needed}</span>'
            yield f"<dt>{described}</dt><dd>{_prose(kind.get('description', ''))}"
            below = [one for one in _structs(kind) if one not in (*above, name)]
            for one in below:
                yield f"<details><summary>{escape(one)}</summary>"
                yield from _type({"$ref": REF + one}, components, (*above, name))
                yield "</details>"
            yield "</dd>"
        yield "</dl>"


def _structs(schema: Schema) -> list[str]:
    """Names of the components in a schema."""
    if "$ref" in schema:
        return [schema["$ref"].removeprefix(REF)]
    parts = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    parts += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
    return list(dict.fromkeys(name for part in parts for name in _structs(part)))


def _kind(schema: Schema) -> str:
    """A type with its bounds and default, in words."""
    text = escape(_words(schema))
    default = json.dumps(schema.get("default"))
    return text + (f", default <code>{escape(default)}</code>" if default not in ("null", '""') else "")


def _words(schema: Schema) -> str:  # noqa: PLR0911
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(REF)
    if "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema["enum"] if value is not None)
    if "const" in schema:
        return json.dumps(schema["const"])
    parts = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if parts:
        return " or ".join(_words(part) for part in parts if part.get("type") != "null")
    kinds = schema.get("type", "any")
    kind = kinds if isinstance(kinds, str) else " or ".join(kind for kind in kinds if kind != "null")
    if kind == "array":
        return f"array of {_words(schema['items'])}" + _range(schema, "minItems", "maxItems", " of ")
    if kind == "string":
        return kind + _range(schema, "minLength", "maxLength", " of length ")
    low, high = (f"exclusive{end}" if f"exclusive{end}" in schema else end.lower() for end in ("Minimum", "Maximum"))
    return kind + _range(schema, low, high, " ")


def _range(schema: Schema, low: str, high: str, word: str) -> str:
    if low not in schema and high not in schema:
        return ""
    above = f"{'above' if low.startswith('exclusive') else 'at least'} {schema.get(low)}"
    below = f"{'below' if high.startswith('exclusive') else 'at most'} {schema.get(high)}"
    if low in schema and high in schema:
        plain = above.startswith("at least") and below.startswith("at most")
        return word + (f"{schema[low]} to {schema[high]}" if plain else f"{above} and {below}")
    return word + (above if low in schema else below)


def _prose(text: str) -> str:
    """Text with its pieces of code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
