"""Every field of `SamplingParams`, by the struct's own types and ranges: it reaches the engine on every way in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterator
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from openai_bls.api.common.lifted import Lifted
from openai_bls.api.registry import TRITON_ENTRIES
from openai_bls.core.engine_types import GenerationRequest, SamplingParams
from openai_bls.core.errors import InvalidRequestError
from openai_bls.engines.capabilities import ALL_FIELDS, RANGES, refusal
from openai_bls.pipeline.preparation import prepare
from openai_bls.triton_models.openai_bls.generate_extension import assemble_lifted
from tests.unit.api.http_support import application
from tests.unit.core_support import (
    VOCAB_SIZE,
    Answered,
    Bench,
    FakeSink,
    ask,
    chat,
    engine_info,
    request_context,
    until,
)

TYPES = get_type_hints(SamplingParams)
FIELDS = SamplingParams.__struct_fields__
USER = [{"role": "user", "content": "hi"}]
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi", "store": False},
}


def values(field: str) -> st.SearchStrategy[Any]:
    """Values of a field that engines take; without an upper bound those up to 2, where every API has some."""
    kind, allowed = TYPES[field], RANGES[field]
    most = allowed.most if isinstance(allowed.most, int) else 2
    floats = st.floats(allowed.least, most, exclude_min=allowed.above)
    if kind == dict[int, float]:
        return st.dictionaries(st.integers(0, VOCAB_SIZE - 1), floats, max_size=3)
    return floats if kind is float else st.integers(int(allowed.least), most)


SOME = st.fixed_dictionaries({}, optional={field: values(field) for field in FIELDS})


async def engine_request(bench: Bench, asked: Awaitable[Any]) -> GenerationRequest:
    """What the engine gets of a request, none of whose fields is refused."""
    before = len(bench.engine.requests)
    task = asyncio.ensure_future(asked)
    await until(lambda: len(bench.engine.requests) > before or task.done())
    if len(bench.engine.requests) > before:
        bench.engine.deliver(before, "a", "length")
    answer = await task
    assert not isinstance(answer, Answered) or answer.status == 200, answer.body
    return bench.engine.requests[before]


def ways(bench: Bench, body: dict[str, Any]) -> Iterator[Awaitable[Any]]:
    """One request on every way in: /v1, and Triton's `generate` and gRPC, whose tensors and parameters are the same."""
    app = application(bench)
    for path, prompt in PATHS.items():
        yield ask(app, "POST", path, {**prompt, **body})
    scalars = {name: value for name, value in body.items() if not isinstance(value, dict)}
    objects = {name: [json.dumps(value).encode()] for name, value in body.items() if isinstance(value, dict)}
    for tensors, parameters in (
        ({"prompt": [b"hi"], **objects}, scalars),
        ({"messages": [json.dumps(USER).encode()], **objects}, scalars),
        ({"request": [json.dumps({"prompt": "hi", **body}).encode()]}, {}),
    ):
        endpoint, given = assemble_lifted(tensors, parameters)
        yield _on_triton(bench, endpoint, given)


async def _on_triton(bench: Bench, endpoint: str, given: Lifted[dict[str, Any]]) -> object:
    return await TRITON_ENTRIES[endpoint](given)(bench.service, request_context(), FakeSink())


@given(sampling=SOME)
@settings(max_examples=20, deadline=None)
def test_every_field_reaches_the_engine_on_every_way_in(sampling: dict[str, Any]) -> None:
    defaults = SamplingParams(temperature=0.7, top_k=20, repetition_penalty=1.1)
    bench = Bench(engine_info(sampling_defaults=defaults))
    wanted = msgspec.structs.replace(defaults, **sampling)
    body = json.loads(msgspec.json.encode(sampling))

    async def main() -> list[GenerationRequest]:
        return [await engine_request(bench, way) for way in ways(bench, body)]

    for request in asyncio.run(main()):
        assert request.sampling == wanted
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=GenerationRequest) == request
        assert refusal(request, bench.model.info) is None


@pytest.mark.parametrize("field", FIELDS)
@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_a_field_that_the_engine_does_not_honour_is_refused_unless_it_changes_nothing(
    field: str, data: st.DataObject
) -> None:
    value = data.draw(values(field))
    assume(value != getattr(SamplingParams(), field))
    bench = Bench(engine_info(supported=tuple(name for name in ALL_FIELDS if name != field)))
    request = chat(**json.loads(msgspec.json.encode({field: value})))
    with pytest.raises(InvalidRequestError) as caught:
        prepare.sampling(request, bench.model, 0)
    assert (caught.value.param, caught.value.code) == (field, "unsupported_parameter")
