"""Engine client of the exchange: one connection on the event loop for all requests of an `openai_bls` instance."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from openai_bls.core.engine import EngineStats
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, LoraUpdate, TokenDelta, UpdateResult
from openai_bls.core.errors import InvalidRequestError, OverloadedError
from openai_bls.transport.ipc.frames import ClientFrame, ServerFrame
from openai_bls.transport.ipc.link import Link, PartState
from openai_bls.transport.ipc.pixel_sender import PixelSender
from openai_bls.transport.ipc.prompt_blocks import BlockReceiver

logger = logging.getLogger(__name__)

_TOO_LARGE = "The request has more data than can be passed to the engine."

DeltaListener = Callable[[TokenDelta], None]


class ExchangeClient:
    """Submits requests to the engine and hands each its deltas.

    Belongs to the event loop's thread, where every listener is called; the loop wakes once per engine step, for all
    requests together. When the connection is lost, every live request ends with a "cancelled" delta that says why; the
    client goes on trying, so that a reloaded engine is found again.

    Args:
        address: address of the engine, which `sockets.address` gives.
        on_engine: called with the engine's info whenever a connection has been made, or adapters have changed.
    """

    def __init__(self, address: str, on_engine: Callable[[EngineInfo], None]) -> None:
        self._on_engine = on_engine
        self._listeners: dict[int, DeltaListener] = {}
        self._submissions: list[GenerationRequest] = []
        self._cancels: list[int] = []
        self._updates: dict[int, asyncio.Future[UpdateResult]] = {}
        """Open updates: of adapters, and resets of the prefix cache."""
        self._flush_scheduled = False
        self._next_id = 1
        self.stats: EngineStats | None = None
        """The engine's load, about a second old; None if it is not known."""
        self._loop = asyncio.get_running_loop()
        self._link = Link("engine", address, ServerFrame, self._take, self._lost)
        self._with_images = PixelSender(self._link, self._refuse)
        self._blocks = BlockReceiver()

    @property
    def live(self) -> int:
        """Requests that have a listener."""
        return len(self._listeners)

    @property
    def connected(self) -> bool:
        """True while the engine is connected."""
        return self._link.open

    async def check(self, timeout_s: float) -> PartState:
        """Ask the process of the engine for an answer."""
        return await self._link.check(timeout_s)

    async def ready(self) -> None:
        """Wait for an engine that is being reloaded.

        Raises:
            OverloadedError: it does not come back.
        """
        await self._link.ready()

    def new_request_id(self) -> int:
        """An id that is unique among the engine's requests."""
        self._next_id += 1
        return self._next_id

    def submit(self, request: GenerationRequest, listener: DeltaListener) -> None:
        """Start a request; `listener` gets its deltas, the last of which has a finish_reason."""
        self._listeners[request.request_id] = listener
        if not self._link.open or self._link.closed:
            self._loop.call_soon(self._fail, [request.request_id])
            return
        if request.media is not None:
            self._with_images.put(request)
            return
        self._submissions.append(request)
        self._schedule_flush()

    def cancel(self, request_id: int) -> None:
        """Stop a request; its listener hears nothing more."""
        if self._listeners.pop(request_id, None) is not None and not self._with_images.cancel(request_id):
            self._cancels.append(request_id)
            self._schedule_flush()

    async def update_lora(self, name: str, path: str) -> None:
        """Load the adapter in the folder `path`, or unload it if that is empty.

        Raises:
            InvalidRequestError: the engine cannot.
            OverloadedError: the engine is not there, or was lost meanwhile.
        """
        await self._update(lambda update_id: ClientFrame(loras=[LoraUpdate(update_id, name, path)]))

    async def reset_prefix_cache(self) -> None:
        """Have the engine forget its cached prompts.

        Raises:
            InvalidRequestError: the engine cannot.
            OverloadedError: it is busy, not there, or was lost meanwhile.
        """
        await self._update(lambda update_id: ClientFrame(prefix_resets=[update_id]))

    async def _update(self, frame: Callable[[int], ClientFrame]) -> None:
        await self._link.ready()
        update_id = self.new_request_id()
        future = self._updates[update_id] = self._loop.create_future()
        self._link.send(frame(update_id))
        try:
            result = await future
        finally:
            del self._updates[update_id]
        error = result.error
        if error is not None:
            kind = OverloadedError if result.busy else InvalidRequestError
            raise kind(error[:1].upper() + error[1:] + ("" if error.endswith(".") else "."))

    async def close(self) -> None:
        """Hang up; live requests end with a cancelled delta, and the engine's work on them ends too."""
        self._cancels += [request_id for request_id in self._listeners if not self._with_images.cancel(request_id)]
        self._flush()
        self._link.close()
        self._lost()
        await self._link.wait_closed()

    def _take(self, frame: ServerFrame, transport: asyncio.Transport) -> None:
        """Hand out what a frame brings."""
        if frame.id_base:
            # Request ids begin at what the engine says.
            self._next_id = frame.id_base
            # Cancels meant for the engine before this one: a reloaded engine counts from the beginning again.
            self._submissions, self._cancels = [], []
            self._link.opened(transport)
        if frame.info is not None:
            self._on_engine(frame.info)
        if frame.update is not None:
            result = self._updates.get(frame.update.update_id)
            if result is not None and not result.done():
                result.set_result(frame.update)
        if frame.stats is not None:
            self.stats = frame.stats
        listeners = self._listeners
        for delta in self._blocks.deltas(frame):
            if delta.finish_reason is None:
                listener = listeners.get(delta.request_id)
            else:
                listener = listeners.pop(delta.request_id, None)
            if listener is not None:
                deliver(listener, delta)

    def _lost(self) -> None:
        self.stats = None
        self._with_images.clear()
        self._blocks.clear()
        for result in self._updates.values():
            if not result.done():
                result.set_exception(OverloadedError(self._link.why_closed))
        self._fail(list(self._listeners))

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if not self._link.open or not (self._submissions or self._cancels):
            return
        submissions, self._submissions = self._submissions, []
        cancels, self._cancels = self._cancels, []
        try:
            self._link.send(ClientFrame(submissions=submissions, cancels=cancels))
        except OverflowError:
            # Too much for one frame, or a number for any: each goes alone.
            for request in submissions:
                try:
                    self._link.send(ClientFrame(submissions=[request]))
                except OverflowError:
                    self._refuse([request.request_id])
            self._link.send(ClientFrame(cancels=cancels))

    def _refuse(self, request_ids: Collection[int]) -> None:
        for request_id in request_ids:
            listener = self._listeners.pop(request_id, None)
            if listener is not None:
                deliver(listener, TokenDelta(request_id, [], "error", error=_TOO_LARGE, invalid=True))

    def _fail(self, request_ids: list[int]) -> None:
        for request_id in request_ids:
            listener = self._listeners.pop(request_id, None)
            if listener is not None:
                why = self._link.why_closed
                deliver(listener, TokenDelta(request_id, [], finish_reason="cancelled", error=why))


def deliver(listener: DeltaListener, delta: TokenDelta) -> None:
    """Call `listener`; its failure is not the others'."""
    try:
        listener(delta)
    except Exception:
        logger.exception("a response stream failed")
