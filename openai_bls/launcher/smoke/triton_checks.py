"""Checks of Triton's own ports: HTTP, metrics and gRPC."""

from __future__ import annotations

import json
import queue
from typing import Any

import numpy as np
import openai
import tritonclient.grpc as grpcclient
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tritonclient.utils import InferenceServerException

from openai_bls.launcher.smoke.check import Check
from openai_bls.launcher.smoke.openai_checks import UNKNOWN_FIELD, refused
from openai_bls.launcher.smoke.session import (
    MAX_TOKENS,
    QUESTION,
    CheckFailedError,
    NotCheckedError,
    Session,
    events,
    get,
    message_text,
    must,
    must_equal,
    post,
    shorten,
    streamed_text,
)

_MODEL = "/v2/models/openai_bls"


def _models_ready(session: Session) -> str:
    try:
        models = post(session.triton, "/v2/repository/index", {})
    except openai.PermissionDeniedError:
        # With model control, which the launcher has put behind a key.
        get(session.triton, "/v2/health/ready")
        return "all"
    waiting = [model["name"] for model in models if model.get("state") != "READY"]
    must(models and not waiting, f"not ready: {', '.join(waiting) or 'there is no model'}")
    return ", ".join(model["name"] for model in models)


def _metrics(session: Session) -> None:
    page = get(session.root, session.given("metrics_url"))
    must("nv_inference_request_success" in page, "the page lacks nv_inference_request_success")


def _fields(session: Session, **fields: Any) -> dict[str, Any]:
    body = session.body(**fields)
    return {**body, "messages": json.dumps(body["messages"])}


def _generated(session: Session, body: dict[str, Any]) -> str:
    text: str = post(session.triton, f"{_MODEL}/generate", session.with_key(body))["response"]
    return text


def _must_be_the_answer(session: Session, completion: str) -> str:
    text = message_text(ChatCompletion.model_validate_json(completion).choices[0].message)
    must_equal(text, session.answer, "the answer")
    return shorten(text)


def _must_join_to_the_answer(session: Session, chunks: list[str]) -> str:
    text = streamed_text(ChatCompletionChunk.model_validate_json(chunk) for chunk in chunks)
    must_equal(text, session.answer, "the joined stream")
    return f"{len(chunks)} chunks"


def _generate(session: Session) -> str:
    return _must_be_the_answer(session, _generated(session, _fields(session)))


def _generate_stream(session: Session) -> str:
    found = events(session.triton, f"{_MODEL}/generate_stream", session.with_key(_fields(session, stream=True)))
    return _must_join_to_the_answer(session, [event["response"] for event in found])


def _generate_request(session: Session) -> None:
    _must_be_the_answer(session, _generated(session, {"request": json.dumps(session.body())}))


def _generate_completion(session: Session) -> str:
    fields: dict[str, Any] = {"model": session.model, "prompt": QUESTION, "max_tokens": MAX_TOKENS, "temperature": 0}
    text: str = json.loads(_generated(session, fields))["choices"][0]["text"]
    must_equal(text, session.v1.completions.create(**fields).choices[0].text, "the text")
    return shorten(text)


def _bad_generate(session: Session) -> str:
    fields = _fields(session, model=session.engine(), **{UNKNOWN_FIELD: 1})
    return refused(lambda: _generated(session, fields), 400, UNKNOWN_FIELD)


def _official(session: Session, model: str) -> str:
    """Check an ensemble by the tensors of NVIDIA's own tensorrtllm_backend."""
    try:
        get(session.triton, f"/v2/models/{model}/ready")
    except openai.APIStatusError:
        raise NotCheckedError(f"the repository does not serve {model}") from None
    session.require_default_to_generate()
    # Greedy whatever the checkpoint's own settings are.
    fields = {"text_input": QUESTION, "max_tokens": MAX_TOKENS, "bad_words": "", "stop_words": "", "top_k": 1}
    body = session.with_key(fields)
    text = post(session.triton, f"/v2/models/{model}/generate", body)["text_output"]
    found = events(session.triton, f"/v2/models/{model}/generate_stream", {**body, "stream": True})
    must_equal("".join(event["text_output"] for event in found), text, "the joined stream")
    return shorten(text)


def _grpc_stream(session: Session) -> str:
    url, timeout = session.given("grpc_url"), session.target.timeout
    request = grpcclient.InferInput("request", [1], "BYTES")
    request.set_data_from_numpy(np.array([json.dumps(session.body(stream=True)).encode()], dtype=np.object_))
    results: queue.Queue[tuple[Any, Any]] = queue.Queue()
    found = []
    try:
        with grpcclient.InferenceServerClient(url) as client:
            client.start_stream(callback=lambda result, error: results.put((result, error)))
            client.async_stream_infer(
                "openai_bls", [request], enable_empty_final_response=True, parameters=session.with_key({})
            )
            while True:
                result, error = results.get(timeout=timeout)
                if error is not None:
                    raise error
                response = result.get_response()
                if response.outputs:
                    found.append(result.as_numpy("response").reshape(-1)[0])
                if response.parameters["triton_final_response"].bool_param:
                    break
            # All has come: there is nothing to cancel.
            client.stop_stream()
    except queue.Empty:
        raise CheckFailedError(f"{url}: no answer in {timeout:.0f} s") from None
    except InferenceServerException as error:
        raise CheckFailedError(f"{url}: {error.message()}") from None
    return _must_join_to_the_answer(session, found)


CHECKS = (
    Check("Triton: health/live", lambda session: get(session.triton, "/v2/health/live") and None),
    Check("Triton: health/ready", lambda session: get(session.triton, "/v2/health/ready") and None),
    Check("Triton: every model ready", _models_ready),
    Check("Triton: metrics", _metrics),
    Check("generate", _generate),
    Check("generate_stream", _generate_stream),
    Check("generate: a body in `request`", _generate_request),
    Check("generate: completions", _generate_completion),
    Check("generate: bad request", _bad_generate),
    Check("ensemble, whole and streamed", lambda session: _official(session, "ensemble")),
    Check("tensorrt_llm_bls, whole and streamed", lambda session: _official(session, "tensorrt_llm_bls")),
    Check("gRPC ModelStreamInfer", _grpc_stream),
)
