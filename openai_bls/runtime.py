"""What one `openai_bls` instance runs besides Triton's own threads: an event loop, the exchange, /v1.

Thread by thread: Triton's calls `submit` and returns at once; the event loop's does all the work; a few send responses
to Triton.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop

from openai_bls.drain import DrainGuard, triton_http_address
from openai_bls.errors import ApiError, EngineError, OverloadedError
from openai_bls.exchange.client import ExchangeClient
from openai_bls.exchange.prompts import PromptExchangeClient
from openai_bls.http.server import HttpServer
from openai_bls.http.sockets import SharedListener
from openai_bls.messages import EngineInfo
from openai_bls.outbox import Outbox, Reply, Senders
from openai_bls.pacer import Pacer
from openai_bls.protocol.generate import assemble
from openai_bls.protocol.requests import parse_object
from openai_bls.protocol.responses import encode
from openai_bls.server_process import is_listening
from openai_bls.service import Service
from openai_bls.settings import OpenAiBlsSettings
from openai_bls.text import detokenizer

logger = logging.getLogger(__name__)

_SERVER_RETRY_S = 0.1
# A request that comes while the engine is still loading waits for it so long.
_ENGINE_WAIT_S = 30.0


class Runtime:
    """One `openai_bls` instance.

    Args:
        settings: the model's.
        engine_address: where the exchange of `tensorrt_llm` listens.
        prompts_address: where that of `preprocessing` does.
        tokenizer_dir: holds tokenizer.json.
        owner: process id of the tritonserver.

    Raises:
        PortInUseError: /v1 cannot have its port.
    """

    def __init__(
        self,
        settings: OpenAiBlsSettings,
        engine_address: str,
        prompts_address: str,
        tokenizer_dir: Path,
        owner: int,
    ) -> None:
        self._settings = settings
        self._engine_address = engine_address
        self._detokenizers = detokenizer.load(tokenizer_dir)
        self._prompts_address = prompts_address
        self._listener = SharedListener(settings.http_host, settings.http_port, owner) if settings.http_port else None
        self._loop = uvloop.new_event_loop()
        self._service: asyncio.Future[Service] = self._loop.create_future()
        self._pacer = Pacer(self._loop)
        self._senders = Senders(settings.sender_threads, self._loop)
        self._closing = threading.Event()
        self._engine: ExchangeClient | None = None
        self._prompts: PromptExchangeClient | None = None
        self._http: HttpServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._owner = owner
        self._server_up = False
        self._answers: set[asyncio.Task[None]] = set()
        self._guard: DrainGuard | None = None
        self._thread = threading.Thread(target=self._run, name="openai-bls", daemon=True)

    def start(self) -> None:
        """Start the event loop; requests are taken from now on, and answered once the engine is there."""
        self._thread.start()

    def submit(
        self,
        tensors: Mapping[str, Sequence[bytes]],
        parameters: Mapping[str, Any],
        reply: Reply,
    ) -> None:
        """Take a request of Triton's endpoints; returns at once. From any thread.

        Args:
            tensors: the BYTES inputs by name, flattened.
            parameters: the request parameters.
        """
        # A server without any front end of its own (in-process use) shows by its first request that it is up.
        self._server_up = True
        self._loop.call_soon_threadsafe(self._take, tensors, parameters, reply)

    def close(self) -> None:
        """End what runs with an error, stop listening, free the threads."""
        self._closing.set()
        if self._thread.is_alive():
            try:
                asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result()
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
        self._senders.close()
        if self._listener is not None:
            self._listener.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._tasks = [self._loop.create_task(self._begin())]
        self._loop.run_forever()

    async def _begin(self) -> None:
        """Wait for the server, then connect to the engine; `_on_engine` goes on from there."""
        # Only then is it known where it listens, which the guard needs.
        while not self._server_up and not is_listening(self._owner):
            await asyncio.sleep(_SERVER_RETRY_S)
        self._guard = DrainGuard(triton_http_address(self._owner), self._on_drain)
        self._guard.start()
        self._prompts = PromptExchangeClient(self._prompts_address)
        self._engine = ExchangeClient(self._engine_address, self._on_engine)

    def _on_engine(self, info: EngineInfo) -> None:
        """The engine is there, for the first time or again: open /v1."""
        assert self._engine is not None
        assert self._prompts is not None
        assert self._guard is not None
        if self._service.done():
            self._service.result().use_engine(info)
            return
        service = Service(
            info,
            self._settings,
            self._engine,
            self._prompts,
            self._detokenizers,
            on_busy=self._guard.set_in_progress,
        )
        self._service.set_result(service)
        if self._listener is not None:
            self._http = HttpServer(service, self._listener, self._pacer)
            self._http.start()
            logger.info(
                "/v1 listens on %s:%d for %s",
                self._settings.http_host,
                self._settings.http_port,
                ", ".join(service.model_names),
            )

    def _on_drain(self) -> None:
        service = self._service.result()
        if not service.draining:
            logger.info("shutting down: %d requests in progress end first", service.in_progress)
            service.draining = True

    def _take(self, tensors: Mapping[str, Sequence[bytes]], parameters: Mapping[str, Any], reply: Reply) -> None:
        outbox = self._senders.outbox(reply)
        task = self._loop.create_task(self._answer(tensors, parameters, outbox))
        outbox.when_cancelled(functools.partial(_cancel, task))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(
        self, tensors: Mapping[str, Sequence[bytes]], parameters: Mapping[str, Any], outbox: Outbox
    ) -> None:
        try:
            await self._answer_or_raise(tensors, parameters, outbox)
        except ApiError as error:
            outbox.fail(error)
        except asyncio.CancelledError:
            # If it was the client that has gone, this is not sent any more.
            outbox.fail(OverloadedError("The server is shutting down."))
        except Exception:
            logger.exception("a request failed")
            outbox.fail(EngineError("The server had an error; see its log."))

    async def _answer_or_raise(
        self, tensors: Mapping[str, Sequence[bytes]], parameters: Mapping[str, Any], outbox: Outbox
    ) -> None:
        endpoint, body = assemble(tensors, parameters)
        request = parse_object(endpoint, body)
        service = await self._ready_service()
        if request.stream:
            generation = await service.stream(request, outbox)
            outbox.when_cancelled(generation.cancel)
        else:
            outbox.answer(encode(await service.answer(request)))

    async def _ready_service(self) -> Service:
        try:
            return await asyncio.wait_for(asyncio.shield(self._service), _ENGINE_WAIT_S)
        except TimeoutError:
            raise OverloadedError("The engine is not loaded (yet); try again later.") from None

    async def _shut_down(self) -> None:
        if self._service.done():
            self._service.result().draining = True
        if self._guard is not None:
            await self._guard.stop()
        if self._engine is not None:
            await self._engine.close()
        if self._prompts is not None:
            await self._prompts.close()
        if self._http is not None:
            await self._http.stop()
        # Whoever still waits, for preprocessing or for the engine to load, is told.
        tasks = [*self._tasks, *self._answers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
