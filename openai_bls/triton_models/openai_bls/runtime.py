"""Runtime of one `openai_bls` instance: an event loop with the engine clients and /v1.

Threads: Triton's calls `accept`, which returns at once; the event loop's does all the work; a few send responses to
Triton, and one tells its metrics port what has changed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import uvloop

from openai_bls.api.app import create_app
from openai_bls.api.common.encoding import encode
from openai_bls.api.common.large_bodies import check_values, is_large, parsed
from openai_bls.api.common.lifted import Lifted, lifted_object
from openai_bls.api.http.listening.listener import SharedListener
from openai_bls.api.http.listening.tls_files import TlsFiles
from openai_bls.api.http.uvicorn_server import HttpServer
from openai_bls.api.http.write_batcher import WriteBatcher
from openai_bls.api.registry import GUARDED, TRITON_ENTRIES
from openai_bls.core.errors import ApiError, OverloadedError, TooLargeError
from openai_bls.core.keys.api_keys import ApiKeys
from openai_bls.core.machine import memory
from openai_bls.core.processes import private_folder
from openai_bls.core.request import checked_timeout
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import Models
from openai_bls.pipeline.observation.event_loop import EventLoopWatch
from openai_bls.pipeline.observation.observer import Observer
from openai_bls.pipeline.service import Service
from openai_bls.transport.ipc.ping import PingClient
from openai_bls.transport.ipc.sockets import address
from openai_bls.triton_models.bls.calls import BlockingCall, BlsCalls, shared_memory_room
from openai_bls.triton_models.endpoint import request_keys
from openai_bls.triton_models.endpoint.envelope import answer_on_triton, triton_context
from openai_bls.triton_models.endpoint.response_sender import Reply, ResponseSender, SenderThreads
from openai_bls.triton_models.openai_bls.engine_connection import (
    EngineConnection,
    UnreachableEngineError,
    connections,
)
from openai_bls.triton_models.openai_bls.engine_failures import EngineFailures
from openai_bls.triton_models.openai_bls.generate_extension import assemble_lifted
from openai_bls.triton_models.openai_bls.metrics_exporter import MetricsExporter, MetricsPort
from openai_bls.triton_models.openai_bls.task_discovery import TaskDiscovery
from openai_bls.triton_models.repository.engines import POSTPROCESSING, TENSORRT_LLM_BLS, Backend
from openai_bls.triton_models.server.drain import DrainGuard
from openai_bls.triton_models.server.grpc_streams import GrpcStreams
from openai_bls.triton_models.server.model_index import ModelIndex, front_end, model_index
from openai_bls.triton_models.server.process import front_ends, http_address, listening_ports, shows_metrics
from openai_bls.triton_models.tensors.models import JSON_INPUTS

logger = logging.getLogger(__name__)

_SERVER_RETRY_S = 0.1
FRONT_ENDS_S = 10.0
"""Seconds from a server's first port to its last. One that is up without a port is none of those known here."""
# Seconds a request waits for an engine that is still loading.
_ENGINE_WAIT_S = 30.0
# Seconds that everything has to end when the model is unloaded. A server that stops waits for that, up to its exit
# timeout, and then ends with an error.
_CLOSE_S = 15.0


class Runtime:
    """One `openai_bls` instance.

    Args:
        settings: settings of the model.
        backends: models of each engine to serve, the default engine's first.
        owner: process id of the tritonserver.
        call_model: makes one BLS call.
        metrics_port: Triton's metrics port, which shows the metrics as /v1's page does, unless the settings or the
            server say otherwise.
        instances: number of `openai_bls` instances in this server.

    Raises:
        PortInUseError: /v1 cannot have its port.
        OSError: there is no private folder.
        ValueError: the default engine's tokenizer cannot be read, a setting names a format that does not exist, the
            file of API keys cannot be used, the files for TLS cannot be, a `preprocessing` cannot be called by BLS, or
            tracing cannot be set up.
    """

    def __init__(
        self,
        settings: OpenAiBlsSettings,
        backends: Sequence[Backend],
        owner: int,
        call_model: BlockingCall,
        metrics_port: MetricsPort | None = None,
        instances: int = 1,
    ) -> None:
        # A server that cannot have it is to say so while it loads.
        private_folder.locate(owner)
        self._settings = settings
        self._instances = instances
        self._api_keys = ApiKeys.of(settings)
        self._tls = TlsFiles.of(settings)
        self._observer = Observer.of(settings)
        self._metrics_port = metrics_port if settings.triton_metrics and shows_metrics(owner) else None
        self._exporter: MetricsExporter | None = None
        self._engines, self._failed = connections(backends, settings)
        self._default = backends[0].engine
        self._index: ModelIndex | None = None
        self._listener = SharedListener(settings.http_host, settings.http_port, owner) if settings.http_port else None
        self._guarded = GUARDED if settings.guard_before or settings.guard_after else frozenset()
        self._loop = uvloop.new_event_loop()
        self._streams = GrpcStreams(owner, settings.engine_grpc_url)
        self._model_calls = BlsCalls(self._loop, call_model, self._streams.stream, shared_memory_room(instances))
        self._service: asyncio.Future[Service] = self._loop.create_future()
        self._write_batcher = WriteBatcher(self._loop)
        self._senders = SenderThreads(settings.sender_threads, self._loop)
        self._closing = threading.Event()
        self._http: HttpServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._owner = owner
        self._server_up = False
        self._hopeless: asyncio.Future[None] = self._loop.create_future()
        """Resolved if no engine will ever be there."""
        self._guard: DrainGuard | None = None
        self._pinged: dict[str, PingClient] = {}
        """Models that get no work from here, by name."""
        self._thread = threading.Thread(target=self._run, name="openai-bls", daemon=True)

    def start(self) -> None:
        """Start the event loop; requests are taken from now on, and answered once the engine is there."""
        self._thread.start()

    def accept(
        self,
        tensors: Mapping[str, Sequence[bytes]],
        parameters: Mapping[str, Any],
        reply: Reply[bytes],
        timeout_s: float | None = None,
    ) -> None:
        """Take a request of Triton's endpoints; returns at once. From any thread.

        Args:
            tensors: the BYTES inputs by name, flattened.
            parameters: the request parameters.
            reply: reply to the request.
            timeout_s: Triton's own timeout of the request, in seconds; None if it has none.
        """
        # A server without any front end of its own (in-process use) shows by its first request that it is up.
        self._server_up = True
        answer = functools.partial(self._answer, tensors, parameters, timeout_s)
        self._loop.call_soon_threadsafe(self._senders.answer, reply, answer)

    def close(self) -> None:
        """End what runs with an error, stop listening, free the threads."""
        self._closing.set()
        if self._thread.is_alive():
            ended = asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop)
            try:
                ended.result(_CLOSE_S)
            except concurrent.futures.TimeoutError:
                running = {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks(self._loop)}
                logger.error("not all has ended after %g s: %s", _CLOSE_S, ", ".join(sorted(running)))
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
        self._senders.close()
        if self._exporter is not None:
            self._exporter.close()
        self._observer.close()
        if self._listener is not None:
            self._listener.close()

    def _run(self) -> None:
        memory.return_large_blocks()
        asyncio.set_event_loop(self._loop)
        self._tasks = [self._loop.create_task(self._begin())]
        self._loop.run_forever()

    async def _begin(self) -> None:
        """Wait for the server, then connect to the engines; `_on_engine` goes on from there."""
        # Only then is it known where it listens, which the guard needs.
        await self._server_started()
        self._index = model_index(self._owner)
        self._guard = DrainGuard(http_address(self._owner), self._on_drain)
        self._guard.start()
        for name in (POSTPROCESSING, TENSORRT_LLM_BLS):
            self._pinged[name] = PingClient(name, address(name, self._owner))
        for engine in self._engines:
            try:
                engine.connect(self._owner, self._model_calls, self._on_engine)
            except UnreachableEngineError as error:
                logger.error("%s", error)
                self._failed[engine.backend.engine] = "It cannot be reached; the server's log says why."
        if self._failed.keys() >= {engine.backend.engine for engine in self._engines}:
            self._hopeless.set_result(None)
        elif self._index is not None and len(self._engines) + len(self._failed) > 1:
            failures = EngineFailures(self._index, self._engines, self._failed, self._on_failures)
            self._tasks.append(self._loop.create_task(failures.run()))

    async def _server_started(self) -> None:
        """Until the server listens on all ports that it has been told to; one that cannot have a port ends."""
        wanted = front_ends(self._owner)
        deadline = None
        while True:
            found = listening_ports(self._owner)
            missing = [f"{name} ({port})" for name, port in wanted.items() if port not in found]
            if not missing and (wanted or found or self._server_up):
                return
            if not found.isdisjoint(wanted.values()) or self._server_up:
                deadline = deadline or self._loop.time() + FRONT_ENDS_S
                if self._loop.time() >= deadline:
                    logger.warning("tritonserver is up without %s: /v1 opens all the same", ", ".join(missing))
                    return
            await asyncio.sleep(_SERVER_RETRY_S)

    def _on_engine(self, engine: EngineConnection) -> None:
        """An engine is there for the first time: serve it. With the default one /v1 opens."""
        assert engine.model is not None
        if self._service.done():
            self._service.result().models.add(engine.model, as_default=engine.is_default)
            logger.info("/v1 serves %s too", ", ".join(engine.model.names))
        elif engine.is_default or self._default_failed:
            self._open()

    def _on_failures(self) -> None:
        """Failures of engines are known: where the default one has failed, /v1 opens with the others."""
        if not self._service.done() and self._default_failed and any(engine.model for engine in self._engines):
            self._open()

    @property
    def _default_failed(self) -> bool:
        return self._default in self._failed

    def _open(self) -> None:
        assert self._guard is not None
        # The default engine's is the first.
        models = [engine.model for engine in self._engines if engine.model is not None]
        has_default = any(engine.is_default and engine.model is not None for engine in self._engines)
        service = Service(
            Models(models, self._failed, has_default=has_default),
            self._settings,
            self._model_calls,
            on_busy=self._guard.set_in_progress,
            api_keys=self._api_keys,
            instances=self._instances,
            observer=self._observer,
            front_end=front_end(self._owner),
        )
        for engine in self._engines:
            engine.add_to(service.readiness)
        for name, client in self._pinged.items():
            service.readiness.add(name, client)
        self._service.set_result(service)
        watch = EventLoopWatch(self._observer, service.metrics.event_loop_stalled)
        self._tasks.append(self._loop.create_task(watch.run()))
        self._tasks.append(self._loop.create_task(service.removed_keys.watch()))
        self._discover_tasks(service.models)
        if self._metrics_port is not None:
            self._exporter = MetricsExporter(service.metrics, self._metrics_port)
            self._exporter.start()
            self._tasks.append(self._loop.create_task(service.readiness.watch()))
        if self._listener is not None:
            app = create_app(service, self._write_batcher)
            self._http = HttpServer(app, service, self._listener, self._tls)
            self._http.start()
            logger.info(
                "/v1 listens on %s:%d%s for %s",
                self._settings.http_host,
                self._settings.http_port,
                " (HTTPS)" if self._tls is not None else "",
                ", ".join(service.models.names),
            )

    def _discover_tasks(self, models: Models) -> None:
        if not self._settings.task_models_interval_s:
            return
        if self._index is None:
            logger.info("tritonserver has neither HTTP nor gRPC to be asked: models with an openai_task are not served")
            return
        discovery = TaskDiscovery(self._index, models, self._settings.task_models_interval_s)
        self._tasks.append(self._loop.create_task(discovery.run()))

    def _on_drain(self) -> None:
        service = self._service.result()
        if not service.draining:
            logger.info("shutting down: %d requests in progress end first", service.in_progress)
            service.draining = True

    async def _answer(
        self,
        tensors: Mapping[str, Sequence[bytes]],
        parameters: Mapping[str, Any],
        timeout_s: float | None,
        sender: ResponseSender[bytes],
    ) -> None:
        context = triton_context(self._observer, "openai_bls", parameters)

        def refuse(error: ApiError) -> None:
            if self._service.done():
                self._service.result().refused(context, error)
            else:
                context.error = error
            sender.fail(error)

        work = self._answer_or_raise(context, tensors, parameters, timeout_s, sender)
        await answer_on_triton(context, work, refuse, sender.fail, self._closing.is_set)

    async def _answer_or_raise(
        self,
        context: RequestContext,
        tensors: Mapping[str, Sequence[bytes]],
        parameters: Mapping[str, Any],
        timeout_s: float | None,
        sender: ResponseSender[bytes],
    ) -> None:
        if self._settings.triton_requires_key:
            context.key = request_keys.check_key(self._api_keys, parameters)
        context.timeout_s = request_keys.timeout_s(parameters)
        if timeout_s is not None:
            seconds = checked_timeout(timeout_s, "timeout")
            context.timeout_s = min(seconds, context.timeout_s or seconds)
        limit = self._settings.max_request_bytes
        texts = [value for value in parameters.values() if isinstance(value, str)]
        items = [item for values in tensors.values() for item in values]
        if sum(map(len, texts)) + sum(map(len, items)) > limit:
            raise TooLargeError(limit)

        def assembled() -> tuple[str, Lifted[dict[str, Any]]]:
            # Other tensors have text, in which a comma is a comma.
            for name in ("request", *JSON_INPUTS):
                for item in tensors.get(name, ()):
                    check_values(item, self._settings.max_request_values)
            return assemble_lifted(tensors, parameters)

        large = any(map(is_large, items))
        context.endpoint, given = await parsed(assembled, large=large, key=context.key)
        if context.endpoint in self._guarded:
            text = await parsed(lambda: encode(given.whole()), large=large, key=context.key)
            passed = await (await self._ready_service()).guarded_body(context, text)
            given = await parsed(lambda: lifted_object(passed), large=is_large(passed), key=context.key)
        respond = TRITON_ENTRIES[context.endpoint](given)
        answering = respond(await self._ready_service(), context, sender)
        answer = await (answering if context.guarded is None else context.guarded.whole(answering))
        if isinstance(answer, bytes):
            sender.answer(answer)
        else:
            sender.when_cancelled(answer.cancel)

    async def _ready_service(self) -> Service:
        if not self._service.done():
            # Cancelling this leaves both as they are.
            ends: list[asyncio.Future[Any]] = [self._service, self._hopeless]
            await asyncio.wait(ends, timeout=_ENGINE_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        if self._service.done():
            return self._service.result()
        if self._hopeless.done():
            raise OverloadedError("The engine cannot be reached; the server's log says why.")
        raise OverloadedError("The engine is not loaded (yet); try again later.")

    async def _shut_down(self) -> None:
        if self._service.done():
            self._service.result().draining = True
            self._service.result().close()
            if guards := self._service.result().guards:
                guards.close()
        if self._guard is not None:
            await self._guard.stop()
        for engine in self._engines:
            await engine.close()
        for client in self._pinged.values():
            await client.close()
        self._model_calls.close()
        await self._streams.close()
        if self._http is not None:
            await self._http.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Requests that wait for preprocessing or for the engine to load end with an error.
        await self._senders.cancel_answers()
        if self._service.done():
            self._service.result().metrics.flush()
