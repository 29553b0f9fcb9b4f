"""What the log and the traces read of a request: noted where its body is read, by every API, whatever its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.api.registry import ENDPOINTS
from openai_bls.api.responses.store import ResponseStore
from openai_bls.core.errors import InvalidRequestError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.observation.observer import Observer
from openai_bls.pipeline.observation.request_log import fields_of
from openai_bls.pipeline.observation.tracing import _last_attributes
from tests.unit.api.chat.chat_model_support import BODY, bench_of
from tests.unit.api.http_support import asked
from tests.unit.api.tasks.transcription import hearing_support
from tests.unit.core_support import Answered, Bench
from tests.unit.pipeline.task_models.task_support import model as task_model

MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "chat.completions": {"messages": MESSAGES},
    "completions": {"prompt": "hi"},
    "responses": {"input": "hi"},
    "messages": {"messages": MESSAGES, "max_tokens": 8, "model": "tiny"},
    "generate": {"messages": MESSAGES},
    "generate.official": {"text_input": "hi"},
}
BODIES |= {f"{name}.render": BODIES[name] for name in ("chat.completions", "completions", "responses", "messages")}
PATHS = {endpoint.name: endpoint.paths[0] for endpoint in ENDPOINTS}


def test_every_endpoint_that_streams_is_tried() -> None:
    structs = [(one.name, body) for one in ENDPOINTS for body in one.operation.bodies]
    streams = {name for name, body in structs if "stream" in {f.name for f in msgspec.structs.fields(body)}}
    assert streams == {*BODIES, "audio.transcriptions"}


def context_of(bench: Bench, ask: Callable[[], Answered]) -> tuple[Answered, RequestContext]:
    """The answer to a request, and the context of what was asked."""
    made: list[RequestContext] = []

    class Noting(Observer):
        def begin(self, *facts: Any) -> RequestContext:
            made.append(super().begin(*facts))
            return made[-1]

    bench.service.observer = Noting()
    answered = ask()
    (context,) = made
    return answered, context


def observed(bench: Bench, path: str, body: dict[str, Any]) -> tuple[Answered, RequestContext]:
    def feed() -> None:
        if bench.engine.requests:
            bench.engine.deliver(0, "a", "stop")

    return context_of(bench, lambda: asked(bench, path, body, feed))


@given(st.sampled_from(sorted(BODIES)), st.sampled_from([None, False, True]), st.sampled_from([None, "tiny", "nobody"]))
def test_a_stream_is_told(name: str, stream: bool | None, model: str | None) -> None:
    body = BODIES[name] | ({} if stream is None else {"stream": stream}) | ({} if model is None else {"model": model})
    answered, context = observed(Bench(), PATHS[name], body)
    if model == "nobody" and name != "generate.official":
        assert answered.status == 404
    assert fields_of(context)["stream"] is _last_attributes(context)["gen_ai.request.stream"] is bool(stream)
    is_stream = answered.headers["content-type"].startswith("text/event-stream")
    assert is_stream == (answered.status == 200 and bool(stream) and not name.endswith(".render"))


@pytest.mark.parametrize("stream", [None, "false", "true"])
@pytest.mark.parametrize(("fields", "status"), [({}, 200), ({"model": "nobody"}, 404), ({"temperature": "0.5"}, 400)])
def test_a_stream_of_a_form_is_told(fields: dict[str, Any], status: int, stream: str | None) -> None:
    bench = hearing_support.bench_of(hearing_support.said("Hello."))
    given = fields if stream is None else {**fields, "stream": stream}
    answered, context = context_of(bench, lambda: hearing_support.heard(bench, **given))
    assert answered.status == status
    assert fields_of(context)["stream"] is _last_attributes(context)["gen_ai.request.stream"] is (stream == "true")


@pytest.mark.parametrize("form", [None, "audio", "sse"])
@pytest.mark.parametrize("model", ["voice", "nobody"])
def test_a_stream_of_audio_is_told(model: str, form: str | None) -> None:
    bench = Bench()
    bench.service.models.tasks.replace([task_model("speech", "voice", max_batch_size=0)])
    bench.model_calls.models["voice"] = lambda _: {"audio": np.zeros(4, np.int16)}
    given = {"input": "hi", "model": model} | ({} if form is None else {"stream_format": form})
    _, context = context_of(bench, lambda: asked(bench, "/v1/audio/speech", given))
    assert fields_of(context)["stream"] is _last_attributes(context)["gen_ai.request.stream"] is (form == "sse")


@pytest.mark.parametrize("stream", [False, True])
def test_a_stream_of_a_chat_model_is_told(stream: bool) -> None:
    whole = {"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}}]}
    _, context = observed(bench_of(whole), PATHS["chat.completions"], {**BODY, "stream": stream})
    assert fields_of(context)["stream"] is stream
    # Which would tell of what only an engine does with the same body.
    assert context.request is None


def test_a_stream_that_a_store_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise InvalidRequestError("no room", param="store")

    monkeypatch.setattr(ResponseStore, "check_room", refuse)
    bench = Bench()
    answered, context = observed(bench, PATHS["responses"], {"input": "hi", "store": True, "stream": True})
    assert (answered.status, bench.engine.requests) == (400, [])
    assert fields_of(context) | {"stream": True, "param": "store", "model": "tiny"} == fields_of(context)


def test_ids_of_what_is_rendered_are_the_api_s() -> None:
    starts = {"chat.completions": "chatcmpl-", "completions": "cmpl-", "responses": "resp_", "messages": "msg_"}
    for name, start in starts.items():
        answer = asked(Bench(), PATHS[f"{name}.render"], BODIES[name]).json()
        for one in answer if isinstance(answer, list) else [answer]:
            assert one["request_id"].startswith(start)
