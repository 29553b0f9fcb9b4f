"""Adapter to Triton's Python backend: the only module that imports `triton_python_backend_utils`.

Tensors come in and go out as numpy arrays by name; what a model may send is declared in `tensors`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import triton_python_backend_utils as pb_utils

from openai_bls.core.errors import (
    ApiError,
    AuthenticationError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
    RateLimitError,
)
from openai_bls.core.keys.api_keys import NO_KEYS, ApiKeys
from openai_bls.core.processes.private_folder import PrivateFolderError
from openai_bls.transport.ipc import sockets
from openai_bls.transport.model_calls import Arrays, ModelCallError, ModelUnavailableError
from openai_bls.triton_models.endpoint.request_keys import HEADER_PARAMETERS, check_key, with_trace
from openai_bls.triton_models.tensors.arrays import is_true

logger = logging.getLogger(__name__)


class _TritonLogHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logger = pb_utils.Logger
        text = self.format(record)
        if record.levelno >= logging.ERROR:
            logger.log_error(text)
        elif record.levelno >= logging.WARNING:
            logger.log_warn(text)
        elif record.levelno >= logging.INFO:
            logger.log_info(text)
        else:
            logger.log_verbose(text)


def log_to_triton() -> None:
    """Send the library's log records to Triton's log."""
    logger = logging.getLogger("openai_bls")
    if not any(isinstance(handler, _TritonLogHandler) for handler in logger.handlers):
        logger.addHandler(_TritonLogHandler())
        logger.setLevel(logging.INFO)
        logger.propagate = False


def config_parameters(args: Mapping[str, str]) -> dict[str, str]:
    """The `parameters` section of the config.pbtxt, from the arguments of `initialize`."""
    parameters = json.loads(args["model_config"]).get("parameters", {})
    return {key: value["string_value"] for key, value in parameters.items()}


def check_config(args: Mapping[str, str]) -> None:
    """Refuse to load a model whose config.pbtxt has no inputs: Triton fills in what an empty one lacks but these."""
    if not json.loads(args["model_config"]).get("input"):
        raise load_error(
            f"the config.pbtxt of {args['model_name']} names no inputs, as if it had been emptied: put this release's "
            "file back, and your settings by `openai-bls render --set`"
        )


def is_decoupled(args: Mapping[str, str]) -> bool:
    """True if a model may send any number of responses per request, by its config.pbtxt."""
    return bool(json.loads(args["model_config"]).get("model_transaction_policy", {}).get("decoupled", False))


def load_error(reason: object) -> Exception:
    """Exception for `initialize` to raise: one line in the log on why the model cannot be loaded."""
    return pb_utils.TritonModelException(str(reason))  # type: ignore[no-any-return]


def model_address(args: dict[str, str]) -> str:
    """Address at which this model listens to the other models of its server.

    Raises:
        TritonModelException: there can be no folder that no other user may write to.
    """
    try:
        return sockets.address(args["model_name"], os.getppid())
    except PrivateFolderError as error:
        raise load_error(error) from None


class MetricsPort:
    """Custom metrics of this model on Triton's metrics port.

    A metric that is alive when its family or the interpreter ends can crash the process: whoever holds one lets it go
    before `close`.
    """

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}

    def metric(self, kind: str, name: str, documentation: str, labels: Mapping[str, str]) -> Any:
        """A metric with `increment` or `set`; each of these takes 0.05 to 0.1 ms.

        Models and instances that ask for the same name and labels share one.

        Args:
            kind: `counter` or `gauge`.
        """
        if name not in self._families:
            number = getattr(pb_utils.MetricFamily, kind.upper())
            self._families[name] = pb_utils.MetricFamily(name=name, description=documentation, kind=number)
        return self._families[name].Metric(labels=dict(labels))

    def close(self) -> None:
        """Remove the families."""
        self._families.clear()


def inputs(request: Any) -> Arrays:
    """All input tensors of a request by name."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


_TRITONS_OWN = {
    # `generate` leaves the request's id among the parameters.
    *("id", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout"),
    # Models that ask for no key take it from clients that give one to all.
    *HEADER_PARAMETERS,
}


# Of vLLM's backend.
_INSTEAD = {
    "sampling_parameters": "; tensorrt_llm_bls takes it",
    "return_logprobs": "; the official 'return_log_probs' says the same",
    "image": "; openai_bls takes images, in 'messages'",
}


def only_inputs(request: Any, keys: ApiKeys = NO_KEYS) -> Arrays:
    """All input tensors of a request to a model that knows no request parameters.

    On `generate` every key that names no input becomes a parameter, for an ensemble one of all its steps; dropped in
    silence it would be a misspelt or unknown option that seems to work.

    Raises:
        AuthenticationError: it lacks an API key, where there are some.
        InvalidRequestError: it has a parameter; Triton's own, and headers that it forwards, do not count.
    """
    parameters = request_parameters(request)
    check_key(keys, parameters)
    arrays = inputs(request)
    for name, value in parameters.items():
        if name == "Streaming" and (is_true(arrays, "stop") or _streams(arrays) == value):
            # The official inflight_batcher_llm_client.py sends it beside the tensor, and with its stop request. It cuts
            # the prompt off an engine's whole answers, unless it asks for none: by a tensor from 0.14 on.
            if "input_ids" in arrays:
                arrays = {"exclude_input_in_output": np.array([[False]]), **arrays}
            continue
        if not (name.lower() in _TRITONS_OWN or name.startswith("triton_") or "-" in name):
            raise InvalidRequestError(f"'{name}' is not an input of this model{_INSTEAD.get(name, '')}.", param=name)
    return arrays


def _streams(arrays: Arrays) -> bool:
    return is_true(arrays, "streaming") or is_true(arrays, "stream")


def text_inputs(request: Any) -> dict[str, list[bytes]]:
    """All input tensors, which must be BYTES, by name and flattened."""
    return {name: array.reshape(-1).tolist() for name, array in inputs(request).items()}


def answer(request: Any, compute: Callable[[Arrays], Mapping[str, Any]], keys: ApiKeys) -> Any:
    """The one response of a model that is not decoupled; no exception leaves this."""
    try:
        return response(compute(only_inputs(request, keys)))
    except ApiError as error:
        return error_response(error)
    except Exception:
        logger.exception("a request failed")
        return error_response(EngineError("The model failed on this request; see its log."))


def request_parameters(request: Any) -> dict[str, Any]:
    """The request's parameters: on HTTP every key of the body that names no input, `id` among them; on gRPC too.

    Where Triton traces the request, the context of that trace is among them, as `traceparent`, unless the client named
    another trace: Triton's spans of requests over gRPC do not always belong to that.

    Raises:
        InvalidRequestError: they are not UTF-8, which Triton does not look at.
    """
    try:
        parameters: dict[str, Any] = json.loads(request.parameters() or "{}")
        if request.request_id():
            parameters["id"] = request.request_id()
    except UnicodeDecodeError:
        raise InvalidRequestError("The request is not valid UTF-8.") from None
    return with_trace(parameters, _trace_context(request))


def _trace_context(request: Any) -> dict[str, str]:
    """W3C's headers of the span that Triton makes for a request, where it traces in the mode `opentelemetry`."""
    if not hasattr(request, "trace"):
        return {}
    context = request.trace().get_context()
    return json.loads(context) if context else {}


def request_timeout_s(request: Any) -> float | None:
    """Seconds of Triton's own request parameter `timeout`, which clients give in microseconds; None if it has none.

    On `generate` a key of that name is one of the request's parameters instead.
    """
    microseconds = request.timeout()
    return microseconds / 1e6 if microseconds else None


def instance_count(args: Mapping[str, str]) -> int:
    """Instances of a model, by its config.pbtxt."""
    groups = json.loads(args["model_config"]).get("instance_group", [])
    return max(1, sum(int(group.get("count", 1)) for group in groups))


def response(arrays: Mapping[str, Any]) -> Any:
    """An inference response with these output tensors."""
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(name, value) for name, value in arrays.items()])


def error_response(error: ApiError, message: str | None = None) -> Any:
    """An inference response that carries `error`'s message (or another) and the nearest of Triton's codes."""
    code = pb_utils.TritonError.INTERNAL
    if isinstance(error, InvalidRequestError | AuthenticationError):
        code = pb_utils.TritonError.INVALID_ARG
    elif isinstance(error, OverloadedError | RateLimitError):
        code = pb_utils.TritonError.UNAVAILABLE
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message or error.message, code))


class ResponseStream:
    """Response stream of a request; safe to use from any thread.

    Sending after the end, and asking for cancellation after it, crash some servers: both are harmless here.

    Args:
        request: request of Triton.
        decoupled: any number of responses may be sent; otherwise it must be one, and is an empty one if there is none.
    """

    def __init__(self, request: Any, *, decoupled: bool = True) -> None:
        self._decoupled = decoupled
        self._sender = request.get_response_sender()
        # The stub itself drops outputs that were not asked for, but without holding the GIL, which corrupts the heap.
        self.requested = frozenset(request.requested_output_names())
        """Names of the outputs to send: all where the client names none."""
        self._lock = threading.Lock()
        self._closed = False

    def send(self, arrays: Mapping[str, Any], *, final: bool = False) -> None:
        """Send one response; with `final`, and if there may be only one, it is the last."""
        if self.requested:
            arrays = {name: value for name, value in arrays.items() if name in self.requested}
        self._send(response(arrays), final or not self._decoupled)

    def fail(self, error: ApiError, message: str | None = None, *, after_output: bool = False) -> None:
        """Send an error of Triton's as the last response."""
        self._send(error_response(error, message), final=True)

    def close(self) -> None:
        """End the stream, if it has not ended yet."""
        self._send(None, final=True)

    def is_cancelled(self) -> bool:
        """True once the client is known to have gone; 30 µs per call, so a few times a second at most."""
        with self._lock:
            return not self._closed and bool(self._sender.is_cancelled())

    def _send(self, message: Any, final: bool) -> None:
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        with self._lock:
            if self._closed:
                return
            if message is None and not self._decoupled:
                message = response({})
            if message is None:
                self._sender.send(flags=flags)
            else:
                self._sender.send(message, flags=flags)
            # Not before: if that failed, for want of shared memory say, the stream still needs its end.
            self._closed = final


class TextReply:
    """Response stream of `openai_bls`: JSON text in the output `response`."""

    def __init__(self, request: Any) -> None:
        self._stream = ResponseStream(request)

    def send(self, body: bytes, *, final: bool = False) -> None:
        """One response."""
        self._stream.send({"response": np.array([body], dtype=np.object_)}, final=final)

    def fail(self, error: ApiError, *, after_output: bool = False) -> None:
        """An error of Triton's whose message is the OpenAI error body as JSON text: HTTP 400. After output a response
        that holds that text."""
        body = msgspec.json.encode(error.body())
        if after_output:
            self.send(body, final=True)
        else:
            self._stream.fail(error, body.decode())

    def close(self) -> None:
        """End the stream."""
        self._stream.close()

    def is_cancelled(self) -> bool:
        """True once the client has gone."""
        return self._stream.is_cancelled()


def call_model(model: str, arrays: Mapping[str, np.ndarray[Any, Any]], outputs: Sequence[str]) -> Arrays:
    """The one response of another model of this server, by a plain BLS call; blocks until it is there.

    Args:
        model: name of the model; Triton's version policy chooses the version.
        arrays: inputs by name.
        outputs: names of the tensors wanted; no other is copied out of the server.

    Raises:
        ModelUnavailableError: the model is not loaded, or this server is shutting down.
        ModelCallError: the model answered with an error, or without a tensor that was asked for.
    """
    try:
        answer = pb_utils.InferenceRequest(
            model_name=model,
            requested_output_names=list(outputs),
            inputs=[pb_utils.Tensor(name, array) for name, array in arrays.items()],
            # NumPy cannot read what a model leaves on its GPU.
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0),
        ).exec()
    except pb_utils.TritonModelException as error:
        # What the call itself refuses: once this model is being unloaded there are no calls any more.
        raise ModelUnavailableError(str(error)) from None
    if answer.has_error():
        raise _call_error(model, answer.error())
    tensors = {tensor.name(): tensor for tensor in answer.output_tensors()}
    missing = [name for name in outputs if name not in tensors]
    if missing:
        raise ModelCallError(f"the model '{model}' answered without {', '.join(missing)}")
    # The response's arrays lie in shared memory that goes with it.
    return {name: np.array(tensors[name].as_numpy()) for name in outputs}


# Words of the server's own refusals, which have no code of their own (2.51.0).
_UNAVAILABLE = re.compile(r"is not ready|has no available versions|Server not ready")


def _call_error(model: str, error: Any) -> ModelCallError:
    # Below it stands the traceback of a Python model, which its own log has.
    message = error.message().partition("\n\nAt:\n")[0]
    kind = ModelUnavailableError if _UNAVAILABLE.search(message) else ModelCallError
    return kind(f"the model '{model}': {message}")
