"""Checks of Triton's own ports: HTTP, metrics and gRPC."""

from __future__ import annotations

import json
import queue
from typing import Any
from urllib.parse import urlsplit

from openai_bls.launcher.smoke.client import HttpServer, chunks, openai_error, raise_error
from openai_bls.launcher.smoke.openai_checks import UNKNOWN_FIELD, must_contain, refused, shorten
from openai_bls.launcher.smoke.outcome import Check, CheckFailedError, NotCheckedError
from openai_bls.launcher.smoke.session import MAX_TOKENS, QUESTION, Session, message_text, must_equal, streamed_text

_MODEL = "/v2/models/openai_bls"


def live(session: Session) -> None:
    """GET /v2/health/live."""
    session.triton.get("/v2/health/live")


def ready(session: Session) -> None:
    """GET /v2/health/ready."""
    session.triton.get("/v2/health/ready")


def models_ready(session: Session) -> str:
    """Every model of the repository is ready."""
    models = session.triton.post("/v2/repository/index", {})
    waiting = [model["name"] for model in models if model.get("state") != "READY"]
    if waiting or not models:
        raise CheckFailedError(f"not ready: {', '.join(waiting) or 'there is no model'}")
    return ", ".join(model["name"] for model in models)


def triton_metrics(session: Session) -> None:
    """Triton's metrics port."""
    url = session.target.metrics_url
    if url is None:
        raise NotCheckedError("needs --metrics-url")
    parts = urlsplit(url)
    page = HttpServer(f"{parts.scheme}://{parts.netloc}", {}, session.target.timeout).get(parts.path)
    must_contain(page.body.decode(), "nv_inference_request_success", "the page")


def generate(session: Session) -> str:
    """A chat completion on generate: the answer of /v1."""
    answer = _generate(session, _fields(session))
    text = message_text(answer["choices"][0]["message"])
    must_equal(text, session.answer, "the answer")
    return shorten(text)


def generate_stream(session: Session) -> str:
    """The same on generate_stream: its pieces are the answer of /v1."""
    events = chunks(session.triton.events(f"{_MODEL}/generate_stream", {**_fields(session), "stream": True}))
    found = [json.loads(event["response"]) for event in events]
    must_equal(streamed_text(found), session.answer, "the joined stream")
    return f"{len(found)} chunks"


def generate_request(session: Session) -> None:
    """A whole OpenAI body as JSON text."""
    answer = _generate(session, {"request": json.dumps(session.body())})
    must_equal(message_text(answer["choices"][0]["message"]), session.answer, "the answer")


def generate_completion(session: Session) -> str:
    """A completion on generate: the text of /v1."""
    fields = {"model": session.model, "prompt": QUESTION, "max_tokens": MAX_TOKENS, "temperature": 0}
    text = _generate(session, fields)["choices"][0]["text"]
    must_equal(text, session.v1.post("/completions", fields)["choices"][0]["text"], "the text")
    return shorten(text)


def generate_tokenize(session: Session) -> str:
    """Tokenize and detokenize on generate."""
    body = {"model": session.model, "prompt": QUESTION, "add_special_tokens": False}
    tokens = _generate(session, {"endpoint": "tokenize", **body})["tokens"]
    fields = {"endpoint": "detokenize", "model": session.model, "tokens": json.dumps(tokens)}
    must_equal(_generate(session, fields)["prompt"].strip(), QUESTION, "the text after detokenize")
    return f"{len(tokens)} tokens"


def generate_embeddings(session: Session) -> str:
    """Embeddings on generate."""
    fields = {"endpoint": "embeddings", "model": session.model, "input": json.dumps([QUESTION])}
    (item,) = _generate(session, fields)["data"]
    return f"{len(item['embedding'])} numbers"


def bad_generate(session: Session) -> str:
    """A field that does not exist is a 400 on generate as well, with the OpenAI body in Triton's error."""
    reply = session.triton.ask("POST", f"{_MODEL}/generate", {**_fields(session), UNKNOWN_FIELD: 1})
    return refused(reply.status, reply.body, 400, UNKNOWN_FIELD)


def ensemble(session: Session) -> str:
    """The official ensemble, whole and streamed."""
    return _official(session, "ensemble")


def tensorrt_llm_bls(session: Session) -> str:
    """The same under its other official name."""
    return _official(session, "tensorrt_llm_bls")


def grpc_stream(session: Session) -> str:
    """ModelStreamInfer on openai_bls: its pieces are the answer of /v1."""
    url = session.target.grpc_url
    if url is None:
        raise NotCheckedError("needs --grpc-url")
    try:
        import numpy as np
        import tritonclient.grpc as grpcclient
        from tritonclient.utils import InferenceServerException
    except ImportError:
        raise NotCheckedError("tritonclient[grpc] is not installed") from None
    request = grpcclient.InferInput("request", [1], "BYTES")
    request.set_data_from_numpy(np.array([json.dumps(session.body(stream=True)).encode()], dtype=np.object_))
    results: queue.Queue[tuple[Any, Any]] = queue.Queue()
    found = []
    try:
        with grpcclient.InferenceServerClient(url) as client:
            client.start_stream(callback=lambda result, error: results.put((result, error)))
            client.async_stream_infer("openai_bls", [request], enable_empty_final_response=True)
            while True:
                result, error = results.get(timeout=session.target.timeout)
                if error is not None:
                    said = openai_error(error.message())
                    if said is not None:
                        raise_error(400, said)
                    raise CheckFailedError(f"{url}: {error.message()}")
                response = result.get_response()
                if response.outputs:
                    found.append(json.loads(result.as_numpy("response").reshape(-1)[0]))
                if response.parameters["triton_final_response"].bool_param:
                    break
            # All has come: there is nothing to cancel.
            client.stop_stream()
    except queue.Empty:
        raise CheckFailedError(f"{url}: no answer in {session.target.timeout:.0f} s") from None
    except InferenceServerException as error:
        raise CheckFailedError(f"{url}: {error.message()}") from None
    must_equal(streamed_text(found), session.answer, "the joined stream")
    return f"{len(found)} responses"


def _fields(session: Session) -> dict[str, Any]:
    body = session.body()
    return {**body, "messages": json.dumps(body["messages"])}


def _generate(session: Session, body: dict[str, Any]) -> Any:
    return json.loads(session.triton.post(f"{_MODEL}/generate", body)["response"])


def _official(session: Session, model: str) -> str:
    triton = session.triton
    if triton.ask("GET", f"/v2/models/{model}/ready").status != 200:
        raise NotCheckedError(f"the repository does not serve {model}")
    # Greedy whatever the checkpoint's own settings are.
    body = {"text_input": QUESTION, "max_tokens": MAX_TOKENS, "bad_words": "", "stop_words": "", "top_k": 1}
    text = triton.post(f"/v2/models/{model}/generate", body)["text_output"]
    events = chunks(triton.events(f"/v2/models/{model}/generate_stream", {**body, "stream": True}))
    must_equal("".join(event["text_output"] for event in events), text, "the joined stream")
    return shorten(text)


CHECKS = (
    Check("Triton: health/live", live),
    Check("Triton: health/ready", ready),
    Check("Triton: every model ready", models_ready),
    Check("Triton: metrics", triton_metrics),
    Check("generate", generate),
    Check("generate_stream", generate_stream),
    Check("generate: a body in `request`", generate_request),
    Check("generate: completions", generate_completion),
    Check("generate: tokenize, detokenize", generate_tokenize),
    Check("generate: embeddings", generate_embeddings, optional=True),
    Check("generate: bad request", bad_generate),
    Check("ensemble, whole and streamed", ensemble),
    Check("tensorrt_llm_bls, whole and streamed", tensorrt_llm_bls),
    Check("gRPC ModelStreamInfer", grpc_stream),
)
