"""OpenAPI document of the API, made from the registry of endpoints and the types that their code reads and writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from openai_bls import __version__
from openai_bls.api.endpoint import Endpoint, Operation, types_of
from openai_bls.api.openapi.json_schema import REF, Schema, SchemaBuilder
from openai_bls.core.errors import (
    ApiError,
    AuthenticationError,
    ModelAnswerError,
    PermissionDeniedError,
    StorageFullError,
)

OPENAPI = "3.1.0"
DEFAULT_MODEL = "openai_bls"
"""Model of examples that need one where none may be named: the default engine's, if its build gave it no other."""
GENERATES = "generate"
"""Task of the engines, as /v1/models says it."""
_EMBEDS = "embeddings"
"""Task, and name of its endpoint, that other models have, and some engines."""
_JSON = "application/json"
_EVENTS = "text/event-stream"


class ErrorText(msgspec.Struct):
    """Message and kind of an error."""

    message: str
    """A sentence that names the field at fault, and says what is supported."""
    type: str
    param: str | None
    """The field at fault."""
    code: str | None


class ErrorBody(msgspec.Struct):
    """The body of an error."""

    error: ErrorText


class Health(msgspec.Struct):
    """State of the server."""

    status: str
    models: dict[str, str]


class Alive(msgspec.Struct):
    """The process answers."""

    status: str


class Version(msgspec.Struct):
    """Releases."""

    version: str
    engine: str


class Load(msgspec.Struct):
    """Requests in progress."""

    server_load: int


_OF_SOME = frozenset[type[ApiError]]({ModelAnswerError, PermissionDeniedError, StorageFullError})
"""Errors of those operations alone that name them."""

_SERVER: dict[str, tuple[str, Any]] = {
    "/health": ("200 while requests are answered, else 503", Health),
    "/health/live": ("200 while the process answers", Alive),
    "/health/ready": ("The same as /health", Health),
    "/load": ("Requests in progress in the instance that answers", Load),
    "/version": ("Releases of the server and of its engine", Version),
}


def document(
    by_title: Mapping[str, Sequence[Endpoint]],
    *,
    has_keys: bool,
    has_guards: bool,
    max_items: int | None = None,
    max_values: int | None = None,
    served: Mapping[str, Sequence[str]] | None = None,
    max_bytes: int | None = None,
) -> dict[str, Any]:
    """The document, as JSON has it.

    Args:
        by_title: endpoints of the registry, by the title of their folder.
        has_keys: requests need an API key.
        has_guards: requests and answers are shown to guards, which may refuse them.
        max_items: tokens of the longest context, and so the most messages, for instance; None is not known.
        max_values: most values of a body, which bound every array that has no bound of its own; None is not known.
        served: name → tasks of the served models, the default first, which examples name; None is not known. With
            `has_keys` examples name none, for the document is read without a key.
        max_bytes: most bytes of a body, which bound the characters of every text that has no bound of its own; None is
            not known.
    """
    operations = [endpoint.operation for endpoints in by_title.values() for endpoint in endpoints]
    described = [one for o in operations for one in (o.body, o.answer, o.events, o.query, o.error)]
    types = [kind for one in described for kind in types_of(one)]
    optional_tags = frozenset[Any]().union(*(operation.optional_tags for operation in operations))
    refusals = {cls: fields for operation in operations for cls, fields in operation.unsupported.items()}
    schemas = SchemaBuilder(
        [*types, ErrorBody, *(kind for _, kind in _SERVER.values())], refusals, optional_tags, max_items
    )
    paths: dict[str, dict[str, Any]] = {}
    for title, endpoints in by_title.items():
        for endpoint, path in ((known, path) for known in endpoints for path in known.paths):
            operation = _operation(endpoint, path, schemas, served, has_keys=has_keys, has_guards=has_guards)
            operation["tags"] = [title]
            paths.setdefault(_template(path), {})[endpoint.method.lower()] = operation
    for path, (summary, kind) in _SERVER.items():
        paths[path] = {"get": _probe(path, summary, kind, schemas)}
    paths["/ping"] = {
        method: {
            "operationId": f"ping.{method}",
            "tags": ["Server"],
            "summary": "What /health says, with the status alone",
            "security": [],
            "responses": {"200": {"description": "Requests are answered."}, "503": {"description": "They are not."}},
        }
        for method in ("get", "post")
    }
    paths["/metrics"] = {
        "get": {
            "operationId": "metrics",
            "tags": ["Server"],
            "summary": "Counters, histograms and gauges for Prometheus",
            "security": [],
            "responses": {"200": {"description": "The metrics.", "content": {"text/plain": {"schema": _TEXT}}}},
        }
    }
    found: dict[str, Any] = {
        "openapi": OPENAPI,
        "info": {
            "title": "openai_bls",
            "version": __version__,
            "summary": "The OpenAI API of a Triton server",
            "description": "Every field is honoured or refused by name: what is not listed is a 400. `null` always "
            "means the default.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": title} for title in by_title],
        "paths": paths,
        "components": {"schemas": schemas.components(without={o.query for o in operations})},
    }
    if has_keys:
        found["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer", "description": "An API key of this server."},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key."},
        }
        found["security"] = [{"bearer": []}, {"x-api-key": []}]
    # Defaults and enums of structs are what JSON makes of them.
    plain: dict[str, Any] = msgspec.to_builtins(found)
    bodies = [found for methods in plain["paths"].values() for found in _bodies(methods)]
    _bound(bodies, plain["components"]["schemas"], max_values, max_bytes, set())
    return plain


def _bodies(methods: Mapping[str, Any]) -> list[Any]:
    return [operation["requestBody"] for operation in methods.values() if "requestBody" in operation]


def _bound(
    schema: Any, components: Mapping[str, Any], max_values: int | None, max_bytes: int | None, seen: set[str]
) -> None:
    """Give every array and text of `schema`, and of the components that it refers to, a bound if it has none."""
    bounds = max_values, max_bytes, seen
    if isinstance(schema, list):
        for member in schema:
            _bound(member, components, *bounds)
    elif isinstance(schema, dict):
        kind = schema.get("type")
        kinds = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else []
        if max_values is not None and "array" in kinds:
            schema.setdefault("maxItems", max_values)
        if max_bytes is not None and "string" in kinds and not schema.keys() & {"enum", "const", "format"}:
            schema.setdefault("maxLength", max_bytes)
        reference = str(schema.get("$ref", "")).removeprefix(REF)
        if reference and reference not in seen:
            seen.add(reference)
            _bound(components[reference], components, *bounds)
        for member in schema.values():
            _bound(member, components, *bounds)


_TEXT: Schema = {"type": "string"}


def _template(path: str) -> str:
    return re.sub(r"\{(\w+)(:\w+)?\}", r"{\1}", path)


def _example(
    endpoint: Endpoint, served: Mapping[str, Sequence[str]] | None, *, has_keys: bool
) -> tuple[Mapping[str, Any] | None, bool]:
    """A body to begin with, None if there is none; and whether no model here serves the endpoint."""
    if endpoint.smoke is None:
        return endpoint.operation.example, False
    body = endpoint.operation.example or endpoint.smoke.body
    unnamed = {"model": DEFAULT_MODEL, **body} if _needs_model(endpoint.operation) else body
    if served is None:
        return unnamed, False
    tasks = endpoint.smoke.tasks or (_EMBEDS if endpoint.name == _EMBEDS else GENERATES,)
    names = [name for name, known in served.items() if set(known) & set(tasks)]
    if not names:
        return None, True
    if has_keys:
        # Without a name the default answers, or the only model of the task.
        return (unnamed if len(names) == 1 or not endpoint.smoke.tasks else None), False
    return {"model": names[0], **body}, False


def _needs_model(operation: Operation) -> bool:
    fields = [field for body in operation.bodies for field in msgspec.structs.fields(getattr(body, "__origin__", body))]
    return any(field.encode_name == "model" and field.required for field in fields)


def _operation(
    endpoint: Endpoint,
    path: str,
    schemas: SchemaBuilder,
    served: Mapping[str, Sequence[str]] | None,
    *,
    has_keys: bool,
    has_guards: bool,
) -> dict[str, Any]:
    known = endpoint.operation
    number = endpoint.paths.index(path)
    found: dict[str, Any] = {
        "operationId": endpoint.name + f".{number + 1}" * bool(number),
        "summary": known.summary,
    }
    if number:
        found["description"] = f"The same as `{_template(endpoint.paths[0])}`."
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _TEXT}
        for name in re.findall(r"\{(\w+)\}", _template(path))
    ]
    if known.query is not None:
        for name, schema in schemas.fields(known.query).items():
            # An empty value in a query is no null.
            kind = schema.get("type")
            plain = {**schema, "type": kind[0]} if isinstance(kind, list) else schema
            values = {"enum": [value for value in schema["enum"] if value is not None]} if "enum" in schema else {}
            parameters.append({"name": name, "in": "query", "required": False, "schema": {**plain, **values}})
    if parameters:
        found["parameters"] = parameters
    if known.bodies:
        content: dict[str, Any] = {"schema": _schema(schemas, known.body)}
        example, unserved = _example(endpoint, served, has_keys=has_keys)
        if unserved:
            found["x-unserved"] = True
        if example is not None:
            content["example"] = example
        found["requestBody"] = {"required": True, "content": {known.body_type: content}}
    responses: dict[str, Any] = {"200": {"description": "Done."}}
    if known.answer is not None:
        kind = "application/octet-stream" if known.answer is bytes else _JSON
        answer: dict[str, Any] = {kind: {"schema": _schema(schemas, known.answer)}}
        if known.events is not None:
            answer[_EVENTS] = {"x-event-schema": _schema(schemas, known.events)}
        responses["200"] = {
            "description": "The answer, or events where it is streamed." if known.events else "The answer."
        }
        responses["200"]["content"] = answer
    error_schema = schemas.schema(known.error or ErrorBody)
    error: dict[str, Any] = {_JSON: {"schema": error_schema}}
    if known.error in types_of(known.events):
        # Of a stream that has not begun, too.
        error[_EVENTS] = {"x-event-schema": error_schema}
    for status, description in _errors(known, has_body=endpoint.method == "POST", has_keys=has_keys):
        here = known.statuses.get(status, status)
        responses[str(here)] = {"description": description, "content": error}
    if has_guards and endpoint.has_guards:
        responses["4XX"] = {"description": "A guard refuses it.", "content": error}
    found["responses"] = responses
    return found


def _schema(schemas: SchemaBuilder, described: Any) -> Schema:
    found = [schemas.schema(kind) for kind in types_of(described)]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _probe(path: str, summary: str, kind: Any, schemas: SchemaBuilder) -> dict[str, Any]:
    content = {_JSON: {"schema": schemas.schema(kind)}}
    responses = {"200": {"description": summary, "content": content}}
    if kind is Health:
        responses["503"] = {"description": "Requests are not answered; `status` says why.", "content": content}
    name = path.removeprefix("/").replace("/", ".")
    return {"operationId": name, "tags": ["Server"], "summary": summary, "security": [], "responses": responses}


def _errors(operation: Operation, *, has_body: bool, has_keys: bool) -> Iterator[tuple[int, str]]:
    """Statuses of errors and what they mean, as `core.errors` has them."""
    found = {500: "The server failed; the client did nothing wrong."}
    for cls in _subclasses(ApiError):
        known = re.match(r"(\d{3}): (.*)", cls.__doc__ or "")
        if known is not None and int(known[1]) not in found:
            found[int(known[1])] = known[2][0].upper() + known[2][1:]
    found[404] = "A model, a response or a path that is not there."
    found[415] = "A content encoding that is not taken, or a web page's content type other than `application/json`."
    absent = {cls.status for cls in _OF_SOME - operation.errors}
    if not has_keys:
        absent |= {AuthenticationError.status, PermissionDeniedError.status}
    if not has_body:
        absent |= {413, 415}
    yield from ((status, found[status]) for status in sorted(found.keys() - absent))


def _subclasses(cls: type[ApiError]) -> Iterator[type[ApiError]]:
    for below in cls.__subclasses__():
        yield below
        yield from _subclasses(below)
