"""Engine client over gRPC: one stream per request with the official tensors, over one connection to this server.

One stream per request, not one for all: the cost per token is the same (measured), and Triton keeps a model in memory
as long as a stream lives that it has answered on, so a stream without an end would keep an unloaded engine in memory
and a stopping server from stopping. A stream is never broken off while a stop request can end it: tritonserver 2.51.0
may lose a request whose stream breaks off just as it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from openai_bls.core.engine import EngineStats
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, TokenDelta
from openai_bls.core.errors import InvalidRequestError, OverloadedError
from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines import capabilities
from openai_bls.transport.grpc import wire
from openai_bls.transport.ipc.client import DeltaListener, deliver
from openai_bls.transport.ipc.link import SHUTTING_DOWN
from openai_bls_tensorrt_llm import limits
from openai_bls_tensorrt_llm.legacy import encoding
from openai_bls_tensorrt_llm.legacy.decoding import UNAVAILABLE, Decoder
from openai_bls_tensorrt_llm.legacy.description import Description, describe, signature

logger = logging.getLogger(__name__)

# Seconds between two looks for a missing engine, and between two at one that is ready.
_RETRY_S = 0.1
_WATCH_S = 1.0
# Seconds a request waits for an engine that is being reloaded.
_WAIT_S = 5.0
# Timeout of ModelReady, in seconds.
_ASK_S = 5.0
# Seconds that stopped streams have to end when the client closes.
_GRACE_S = 2.0


class _RequestState:
    """A request whose stream has not ended."""

    def __init__(self, request: GenerationRequest, triton_id: str, listener: DeltaListener) -> None:
        self.request = request
        self.triton_id = triton_id
        self.decoder = Decoder(request)
        self.listener: DeltaListener | None = listener
        """None after its last delta."""
        self.call: Any = None
        """The stream, once it is open."""
        self.due = 1
        """Last responses that are still to come: of the request, and of a stop request."""
        self.writing = asyncio.Lock()

    def tell(self, delta: TokenDelta | None) -> None:
        """Give the listener a delta; none after the last."""
        listener = self.listener
        if delta is None or listener is None:
            return
        if delta.finish_reason is not None:
            self.listener = None
        deliver(listener, delta)


class GrpcEngineClient:
    """Submits requests to a model with the official contract and hands each its deltas.

    Belongs to the event loop's thread, where every listener is called. While the model is being unloaded, live requests
    go on to their end, which Triton waits for; those of a connection that is lost end with a "cancelled" delta that
    says why. The client goes on looking, so that a reloaded engine is found again.

    Args:
        model: name of the Triton model.
        model_dir: folder of the model in the repository, with the manifest and config.pbtxt.
        address: host and port of this server's gRPC front end.
        on_engine: called with the engine's info whenever it has been found.
    """

    def __init__(self, model: str, model_dir: Path, address: str, on_engine: Callable[[EngineInfo], None]) -> None:
        self._model = model
        self._model_dir = model_dir
        self._address = address
        self._on_engine = on_engine
        # Of all clients of the server: requests of the same id would be taken for each other.
        self._prefix = f"openai_bls-{secrets.token_hex(6)}-"
        self._next_id = 0
        self._listening: dict[int, _RequestState] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._generated = 0
        self._description: Description | None = None
        self._signature = (0, 0)
        self._problem = ""
        self._open = asyncio.Event()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._channel = wire.open_channel(address)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._watcher = self._loop.create_task(self._watch())

    @property
    def live(self) -> int:
        """Requests that have a listener."""
        return len(self._listening)

    @property
    def connected(self) -> bool:
        """True while the engine is connected."""
        return self._open.is_set() and not self._closed

    @property
    def stats(self) -> EngineStats | None:
        """This instance's own load, for the backend does not tell its; None if the engine is not there."""
        if self._description is None or not self.connected:
            return None
        running = min(self.live, self._description.info.max_batch_size)
        return EngineStats(
            running=running,
            waiting=self.live - running,
            # Not known here; Triton's own metrics have it.
            kv_cache_usage=float("nan"),
            steps=0,
            generated_tokens=self._generated,
        )

    async def ready(self) -> None:
        """Wait for an engine that is being reloaded.

        Raises:
            OverloadedError: it does not come back.
        """
        if not self._closed:
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self._open.wait(), _WAIT_S)
        if not self.connected:
            raise OverloadedError(self._why_closed)

    def new_request_id(self) -> int:
        """An id that is unique among this client's requests; what Triton sees is unique among all clients'."""
        self._next_id += 1
        return self._next_id

    def submit(self, request: GenerationRequest, listener: DeltaListener) -> None:
        """Start a request; `listener` gets its deltas, the last of which has a finish_reason."""
        state = _RequestState(request, f"{self._prefix}{request.request_id}", listener)
        self._listening[request.request_id] = state
        if not self.connected or self._description is None:
            self._loop.call_soon(self._fail, state)
            return
        self._start(self._run(state, self._description))

    def cancel(self, request_id: int) -> None:
        """Stop a request; its listener hears nothing more."""
        state = self._listening.pop(request_id, None)
        if state is not None:
            state.listener = None
            self._stop(state)

    async def update_lora(self, name: str, path: str) -> None:
        """Refuse: the C++ backend gets adapters with each request."""
        raise InvalidRequestError("The C++ backend takes no adapters at run time: build with --backend python.")

    async def reset_prefix_cache(self) -> None:
        """Refuse: the C++ backend has no such call."""
        raise InvalidRequestError("The C++ backend cannot reset its prefix cache while it runs: reload the model.")

    async def close(self) -> None:
        """Hang up; live requests end with a cancelled delta, and the engine's work on them ends too."""
        self._closed = True
        # Wakes requests that wait for the engine.
        self._open.set()
        for state in list(self._listening.values()):
            self._fail(state)
            self._stop(state)
        self._watcher.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_GRACE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(self._watcher, *self._tasks, return_exceptions=True)
        await self._channel.close()

    @property
    def _why_closed(self) -> str:
        return SHUTTING_DOWN if self._closed else UNAVAILABLE

    def _start(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _stop(self, state: _RequestState) -> None:
        if state.call is not None and state.due:
            self._start(self._write_stop(state))

    async def _run(self, state: _RequestState, description: Description) -> None:
        """A request from its refusal or its submission to the end of its stream."""
        try:
            if not self._settled_at_once(state, description):
                await self._stream(state, description)
        except grpc.aio.AioRpcError as error:
            logger.warning("a stream of %s broke off: %s", self._model, error.details())
        except asyncio.CancelledError:
            pass  # grpc raises it for a call that is broken off, too
        except Exception:
            logger.exception("a request to %s failed", self._model)
            if state.call is not None:
                # The engine may be at work on it still.
                state.call.cancel()
            state.tell(TokenDelta(state.request.request_id, [], "error", error=capabilities.ENGINE_FAILED))
        finally:
            state.due = 0
            self._fail(state)

    def _settled_at_once(self, state: _RequestState, description: Description) -> bool:
        """Answer a refused or an empty request without the engine; False if the engine has to."""
        request, info = state.request, description.info
        refusal = (
            capabilities.refusal(request, info)
            or limits.refusal(request, description.manifest, info, chunked_context=description.chunked_context)
            or encoding.refusal(request)
        )
        if refusal is not None:
            state.tell(TokenDelta(request.request_id, [], "error", error=refusal, invalid=True))
        elif not request.max_tokens:
            # Nothing is to be sampled, which the backend has no words for.
            state.tell(TokenDelta(request.request_id, [], "length"))
        return state.listener is None

    async def _stream(self, state: _RequestState, description: Description) -> None:
        arrays = encoding.encode(state.request, description.info, description.inputs)
        outputs = wire.OUTPUTS if state.request.logprobs is None else (*wire.OUTPUTS, wire.LOG_PROBS)
        message = wire.infer_request(self._model, arrays, outputs, state.triton_id)
        state.call = call = self._stub.ModelStreamInfer()
        async with state.writing:
            await call.write(message)
        async for answer in call:
            self._take(state, wire.read(answer))
            if not state.due:
                await wire.done_writing(call)

    def _take(self, state: _RequestState, response: wire.Response) -> None:
        state.due -= response.final
        if state.listener is None:
            if response.error:
                # The stop request was refused: the model is being unloaded.
                state.call.cancel()
            return
        self._generated += len(response.token_ids)
        if response.error:
            state.tell(state.decoder.fail(response.error))
        else:
            state.tell(state.decoder.take(response.token_ids, response.log_probs, final=response.final))
        if state.listener is None:
            self._forget(state)
            # What ended before the engine has said so.
            self._stop(state)

    async def _write_stop(self, state: _RequestState) -> None:
        """On the request's own stream, so that it cannot overtake the request."""
        async with state.writing:
            if not state.due:
                return
            state.due += 1
            message = wire.infer_request(self._model, encoding.stop_arrays(), wire.OUTPUTS, state.triton_id)
            # The stream may have ended meanwhile.
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
                await state.call.write(message)

    def _fail(self, state: _RequestState) -> None:
        """End a request with a "cancelled" delta, unless it has ended."""
        self._forget(state)
        state.tell(TokenDelta(state.request.request_id, [], finish_reason="cancelled", error=self._why_closed))

    def _forget(self, state: _RequestState) -> None:
        if self._listening.get(state.request.request_id) is state:
            del self._listening[state.request.request_id]

    async def _watch(self) -> None:
        """Find the model, and notice when it is unloaded or replaced."""
        while True:
            try:
                if await self._is_ready():
                    self._found()
                elif self._open.is_set():
                    logger.warning("the model %s is not loaded any more", self._model)
                    self._open.clear()
            except Exception:
                # The engine must be found again whatever happens here.
                logger.exception("the model %s could not be looked at", self._model)
            await asyncio.sleep(_WATCH_S if self._open.is_set() else _RETRY_S)

    async def _is_ready(self) -> bool:
        try:
            answer = await self._stub.ModelReady(service_pb2.ModelReadyRequest(name=self._model), timeout=_ASK_S)
        except grpc.aio.AioRpcError as error:
            # A server with much to do may take long, which says nothing about the model.
            return error.code() == grpc.StatusCode.DEADLINE_EXCEEDED and self._open.is_set()
        return bool(answer.ready)

    def _found(self) -> None:
        """The model is there. Whether it is another one can be seen by its manifest alone."""
        now = signature(self._model_dir)
        if self._open.is_set() and now == self._signature:
            return
        try:
            self._description = describe(self._model_dir)
        except EngineLoadError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                logger.error("%s cannot be served: %s", self._model, error)
            return
        self._problem = ""
        self._signature = now
        self._open.set()
        self._on_engine(self._description.info)
