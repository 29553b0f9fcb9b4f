"""Cases: one generated request each, on /v1, on generate and generate_stream, and on gRPC."""

from __future__ import annotations

import base64
import copy
import json
import struct
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from openai_bls.api.registry import ENDPOINTS, TRITON_ENTRIES
from openai_bls.triton_models.tensors.declaration import Tensor
from openai_bls.triton_models.tensors.models import JSON_INPUTS, MODELS
from tests.torture import schemas

# A case is one of 100,000: what runs is to be short.
_MOST_TOKENS = 16
_TEXT_MODELS = ("ensemble", "tensorrt_llm_bls")
_NUMPY = {"BOOL": "?", "INT32": "<i4", "UINT64": "<u8", "FP16": "<f2", "FP32": "<f4", "UINT8": "<u1"}


@dataclass(frozen=True)
class Case:
    """A request, and the door it goes to."""

    door: str
    """As the report counts it: `/v1/score`, `generate openai_bls`, `gRPC ensemble`."""
    port: str
    """`openai`, `http` or `grpc`."""
    path: str
    body: bytes
    """On gRPC a ModelInferRequest."""
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()

    def saved(self) -> dict[str, Any]:
        """The case as JSON, from which `replayed` makes it again."""
        return {**msgspec.to_builtins(self), "body": base64.b64encode(self.body).decode()}


def replayed(saved: dict[str, Any]) -> Case:
    """The case of a saved finding."""
    fields = {**saved, "body": base64.b64decode(saved["body"]), "headers": tuple(map(tuple, saved["headers"]))}
    return Case(**fields)


# --- bodies ---


def _short(body: Any) -> Any:
    """`body` with sane lengths cut down; odd ones stay as they are."""
    if isinstance(body, dict):
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "request_output_len", "min_tokens"):
            if isinstance(body.get(name), int) and _MOST_TOKENS < body[name] <= 2048:
                body[name] = _MOST_TOKENS
    return body


@st.composite
def json_bodies(draw: st.DrawFn, endpoint: str, smoke: dict[str, Any]) -> dict[str, Any]:
    """The smoke test's body, with some fields of the schema, and with some damage."""
    body: dict[str, Any] = json.loads(json.dumps(smoke))
    known = schemas.fields_of(endpoint)
    for _ in range(draw(st.integers(0, 3)) if known else 0):
        name = draw(st.sampled_from(sorted(known)))
        # What a strategy holds, such as a schema among its samples, is not to be damaged with the body.
        body[name] = copy.deepcopy(draw(known[name]))
    damage = draw(st.integers(0, 9))
    if damage == 0:
        body[draw(schemas.texts)] = draw(schemas.anything)
    elif damage == 1 and body:
        del body[draw(st.sampled_from(sorted(body)))]
    elif damage in (2, 3):
        _replace_somewhere(draw, body)
    return dict(_short(body))


def _replace_somewhere(draw: st.DrawFn, body: Any) -> None:
    """Put anything in the place of one value, however deep."""
    at = body
    while True:
        keys: list[Any] = sorted(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return
        key = draw(st.sampled_from(keys))
        if not isinstance(at[key], dict | list) or draw(st.booleans()):
            at[key] = draw(schemas.anything)
            return
        at = at[key]


def _text(body: Any, *, ascii_only: bool = True) -> bytes:
    return json.dumps(body, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")


@st.composite
def _encoded(draw: st.DrawFn, bodies: st.SearchStrategy[Any], ways: int) -> bytes:
    """JSON text, or what was one in ten of so many `ways`."""
    text = _text(draw(bodies), ascii_only=draw(st.booleans()))
    # The simplest of all, which each round begins with, is whole.
    way = draw(st.integers(0, ways)) - ways + 9
    at = draw(st.integers(0, max(0, len(text) - 1)))
    depth = draw(st.sampled_from([3, 100, 1000, 20_000])) if way in (5, 6) else 0
    damaged: dict[int, bytes] = {
        0: text[:at],
        1: text[:at] + bytes([draw(st.integers(0, 255))]) + text[at + 1 :],
        2: text[:at] + draw(st.binary(max_size=20)) + text[at:],
        3: draw(st.binary(max_size=200)),
        4: draw(
            st.sampled_from([b"", b"null", b"[]", b"1", b'""', b"{", b"\xef\xbb\xbf{}", b"{}{}", b" \n{}\n ", b"NaN"])
        ),
        5: b'{"messages": ' + b"[" * depth + b"]" * depth + b"}",
        6: b'{"prompt": ' + b'{"a":' * depth + b"1" + b"}" * depth + b"}",
        7: text[:-1] + b', "max_tokens": 3, "max_tokens": "x"}',
        8: text.decode("utf-8", "replace").encode("utf-16"),
        9: text[:-1] + b', "seed": ' + b"9" * draw(st.sampled_from([20, 400, 5000])) + b"}",
    }
    return damaged.get(way, text)


# --- /v1 ---

_ODD_HEADERS: tuple[tuple[str, str], ...] = (
    ("content-type", "text/plain"),
    ("content-type", "application/x-www-form-urlencoded"),
    ("content-type", "application/json; charset=utf-16"),
    ("content-encoding", "gzip"),
    ("x-request-id", "\x80" * 200),
    ("x-request-id", "a b"),
    ("x-request-timeout", "0.000001"),
    ("x-request-timeout", "nan"),
    ("expect", "100-continue"),
    ("origin", "https://example.com"),
    ("authorization", "Bearer "),
    ("accept", "image/png"),
    ("range", "bytes=0-1"),
    ("cookie", "a" * 8000),
)
_HEADERS = st.sampled_from([*[()] * 40, *((header,) for header in _ODD_HEADERS)])


def _v1() -> dict[str, st.SearchStrategy[Case]]:
    doors = {}
    for endpoint in ENDPOINTS:
        path = endpoint.paths[0]
        door = f"{endpoint.method} {path}"
        if "{" in path:
            doors[door] = _paths(door, endpoint.method, path)
            continue
        smoke = dict(endpoint.smoke.body) if endpoint.smoke is not None else {}
        if endpoint.name.startswith("messages"):
            smoke["model"] = "demo"
        bodies = _encoded(json_bodies(endpoint.name, smoke), 50) if endpoint.method == "POST" else st.just(b"")
        doors[door] = st.builds(
            Case,
            st.just(door),
            st.just("openai"),
            st.sampled_from(endpoint.paths),
            bodies,
            st.just(endpoint.method),
            _HEADERS,
        )
    return doors


def _paths(door: str, method: str, template: str) -> st.SearchStrategy[Case]:
    """Requests whose path has a parameter."""
    begin, _, rest = template.partition("{")
    end = rest.partition("}")[2]

    def case(name: str, query: str, plain: bool) -> Case:
        name = quote(name.encode("utf-8", "replace")[:2000], safe="/." if plain else "")
        return Case(door, "openai", f"{begin}{name}{end}{query}", b"", method)

    queries = st.sampled_from(
        ["", "", "", "?limit=1", "?limit=x&order=up", "?stream=true", "?after=%00", "?a=" + "b" * 3000]
    )
    return st.builds(case, schemas.texts, queries, st.booleans())


def _seeing() -> dict[str, st.SearchStrategy[Case]]:
    """Images, bad ones and good ones, for a model that takes them."""

    def body(content: list[dict[str, Any]], stream: bool, n: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": content}]
        return {"model": schemas.SEES, "messages": messages, "max_tokens": 4, "stream": stream, "n": n}

    door, path = "POST /v1/chat/completions with images", "/v1/chat/completions"
    bodies = _encoded(st.builds(body, schemas.pictures, st.booleans(), st.integers(1, 3)), 150)
    return {door: st.builds(Case, st.just(door), st.just("openai"), st.just(path), bodies)}


# --- generate and generate_stream ---

_WORDS = {"text_input": "Hello", "max_tokens": 4, "bad_words": "", "stop_words": ""}
_BASES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(_TEXT_MODELS, _WORDS),
    "tensorrt_llm": {"input_ids": [1, 2, 3], "input_lengths": 3, "request_output_len": 4},
    "preprocessing": {"QUERY": "Hello", "REQUEST_OUTPUT_LEN": 4},
    "postprocessing": {"TOKENS_BATCH": [[1, 2, 3]], "SEQUENCE_LENGTH": [3]},
}


_INTEGERS = {
    "INT32": st.one_of(st.integers(-2, 30), st.integers(-(2**31), 2**31 - 1)),
    "UINT64": st.one_of(st.integers(0, 30), st.integers(0, 2**64 - 1)),
}


def _element(tensor: Tensor) -> st.SearchStrategy[Any]:
    if tensor.data_type == "STRING":
        return schemas.texts
    if tensor.data_type == "BOOL":
        return st.booleans()
    return (
        st.one_of(st.integers(0, 5), schemas.numbers)
        if tensor.data_type.startswith("F")
        else _INTEGERS[tensor.data_type]
    )


def _values(tensor: Tensor) -> st.SearchStrategy[Any]:
    """JSON of a tensor: a scalar, a list, or anything."""
    one = _element(tensor)
    return st.one_of(one, one, one, one, one, st.lists(one, max_size=4), schemas.leaves)


@st.composite
def _tensors(draw: st.DrawFn, model: str) -> dict[str, Any]:
    declared = {tensor.name: tensor for tensor in MODELS[model].inputs}
    body = dict(_BASES[model])
    for name in draw(st.lists(st.sampled_from(sorted(declared)), max_size=3)):
        body[name] = draw(_values(declared[name]))
    if draw(st.integers(0, 9)) == 0:
        body[draw(schemas.texts)] = draw(schemas.leaves)
    if draw(st.integers(0, 9)) == 0:
        del body[draw(st.sampled_from(sorted(body)))]
    return dict(_short(body))


_SMOKE = {e.name: dict(e.smoke.body) if e.smoke is not None else {} for e in ENDPOINTS}


@st.composite
def _openai_fields(draw: st.DrawFn) -> dict[str, Any]:
    """A body for openai_bls on Triton: as JSON text in `request`, or field by field."""
    endpoint = draw(st.sampled_from(sorted(TRITON_ENTRIES)))
    body = draw(json_bodies(endpoint, _SMOKE[endpoint]))
    named = {} if endpoint == "chat.completions" and draw(st.booleans()) else {"endpoint": endpoint}
    if draw(st.booleans()):
        return {**named, "request": json.dumps(body)}
    fields = {
        name: given if name not in JSON_INPUTS or isinstance(given, str) else json.dumps(given)
        for name, given in body.items()
    }
    return {**named, **fields}


def _generate() -> dict[str, st.SearchStrategy[Case]]:
    doors = {}
    for model in ("openai_bls", *_BASES):
        bodies = _openai_fields() if model == "openai_bls" else _tensors(model)
        for way in ("generate", "generate_stream"):
            door = f"{way} {model}"
            path = f"/v2/models/{model}/{way}"
            # Of another content type some are fatal to older servers: SECURITY.md.
            headers = (("content-type", "application/json"),)
            doors[door] = st.builds(
                Case, st.just(door), st.just("http"), st.just(path), _encoded(bodies, 150), headers=st.just(headers)
            )
    return doors


# --- gRPC ---


@st.composite
def _shaped(draw: st.DrawFn, tensor: Tensor, batched: bool) -> tuple[list[int], Any]:
    """Shape and values, which fit each other and mostly the declaration."""
    shape = [draw(st.sampled_from([1, 1, 2, 0])) if size == -1 else size for size in tensor.dims]
    if batched:
        shape = [1, *shape]
    if draw(st.integers(0, 9)) == 0:
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = int(np.prod(shape))
    return shape, draw(st.lists(_element(tensor), min_size=count, max_size=count))


def _raw(tensor: Tensor, values: list[Any]) -> bytes:
    if tensor.data_type == "STRING":
        encoded = [str(value).encode("utf-8", "surrogatepass") for value in values]
        return b"".join(struct.pack("<I", len(one)) + one for one in encoded)
    with np.errstate(all="ignore"):
        array = np.array([value if isinstance(value, int | float) else 0 for value in values], dtype=np.float64)
        return array.astype(_NUMPY[tensor.data_type]).tobytes()


@st.composite
def _infer_requests(draw: st.DrawFn, model: str) -> bytes:
    """A ModelInferRequest; in some, type, shape and bytes do not fit each other."""
    declared = {tensor.name: tensor for tensor in MODELS[model].inputs}
    batched = MODELS[model].max_batch_size > 0
    request = service_pb2.ModelInferRequest(model_name=model, id=draw(st.sampled_from(["", "", "1", "x" * 300])))
    if model == "openai_bls":
        body = draw(_openai_fields())
        given = {name: [str(value)] for name, value in body.items() if name in declared}
        parameters: dict[str, Any] = {name: value for name, value in body.items() if name not in declared}
    else:
        given, parameters = dict(_BASES[model]), {}
    tensors: dict[str, tuple[list[int], list[Any]]] = {}
    for name, values in given.items():
        flat = np.array(values, dtype=np.object_).reshape(-1).tolist()
        shape = [len(flat)] if declared[name].scalar or len(declared[name].dims) == 1 else [*np.shape(values)][-2:]
        tensors[name] = ([1, *shape] if batched and len(shape) <= len(declared[name].dims) else shape, flat)
    for name in draw(st.lists(st.sampled_from(sorted(declared)), max_size=2)):
        tensors[name] = draw(_shaped(declared[name], batched))
    for name, (shape, values) in tensors.items():
        raw, further = _raw(declared[name], values), []
        kind = declared[name].data_type
        odd = draw(st.integers(0, 40))
        if odd == 0:
            raw = draw(st.binary(max_size=40))
        elif odd == 1:
            further = [draw(st.sampled_from([1, 3, 2**20]))]
        declared_type = (
            draw(st.sampled_from(["FP32", "INT64", "NONE"])) if odd == 2 else kind.replace("STRING", "BYTES")
        )
        request.inputs.add(name=name if odd != 3 else name + "x", datatype=declared_type, shape=[*shape, *further])
        request.raw_input_contents.append(raw)
    for name, parameter in parameters.items():
        _set_parameter(request, name, parameter)
    return bytes(request.SerializeToString())


def _set_parameter(request: Any, name: str, value: Any) -> None:
    # Protocol buffers have no lone surrogates.
    target = request.parameters[name.encode("utf-8", "replace").decode()]
    if isinstance(value, bool):
        target.bool_param = value
    elif isinstance(value, int) and -(2**63) <= value < 2**63:
        target.int64_param = value
    elif isinstance(value, float):
        target.double_param = value
    else:
        target.string_param = str(value).encode("utf-8", "replace").decode()


def _grpc() -> dict[str, st.SearchStrategy[Case]]:
    doors = {}
    for model in ("openai_bls", *_BASES):
        door = f"gRPC {model}"
        paths = st.sampled_from(["ModelStreamInfer", "ModelStreamInfer", "ModelInfer"])
        doors[door] = st.builds(Case, st.just(door), st.just("grpc"), paths, _infer_requests(model))
    return doors


DOORS: dict[str, st.SearchStrategy[Case]] = {**_v1(), **_seeing(), **_generate(), **_grpc()}
"""Door → its cases."""
