"""Responses to Triton, sent by a few threads; text of one request that waits to be sent is joined into one response.

Triton's `send` waits until the server has taken the response, about 0.1 ms, so the event loop must not call it. A
stream whose responses come faster than the server takes them gets its text in larger pieces instead of ever later.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from openai_bls.core.errors import ApiError
from openai_bls.core.usage import Usage

logger = logging.getLogger(__name__)

# Triton's HTTP front end queues responses for the thread that writes them in a socket pair that holds about 270, and
# drops what does not fit: events, or the end of a stream, which then never ends for its client, without an error. So at
# most this many responses are sent in this many seconds, several times what that thread needs for them ...
_MOST_RESPONSES = 200
_MOST_RESPONSES_S = 0.025
# ... and a sender rests as long as its last response took, longer when the server is short of CPU time; at most this
# many seconds.
_LONGEST_REST_S = 0.005

# Seconds between two checks of every request's client; a check costs about 30 µs per request.
_CANCELLATION_INTERVAL_S = 0.15


BodyT = TypeVar("BodyT")
BodyT_co = TypeVar("BodyT_co", covariant=True)
BodyT_contra = TypeVar("BodyT_contra", contravariant=True)


class Reply(Protocol[BodyT_contra]):
    """Response stream of a Triton request; see `pb_utils.TextReply` and `pb_utils.ResponseStream`."""

    def send(self, body: BodyT_contra, *, final: bool = False) -> None:
        """One response; waits for the server."""

    def fail(self, error: ApiError, *, after_output: bool = False) -> None:
        """An error as the last response."""

    def close(self) -> None:
        """End the stream."""

    def is_cancelled(self) -> bool:
        """True once the client has gone."""


class TextEncoder(Protocol[BodyT_co]):
    """Encoder of text; see `api.common.events.event_sink.TextEncoder`."""

    def text(self, index: int, text: str, usage: Usage | None = None) -> BodyT_co:
        """A response with a piece of text of choice `index`."""


class _Text(NamedTuple):
    choice: int
    text: str
    usage: Usage | None


class _End(NamedTuple):
    error: ApiError | None = None


class ResponseSender(Generic[BodyT]):
    """Responses of one request on Triton's endpoints, streamed or whole.

    Everything but `send_pending` and `look` belongs to the event loop's thread and returns at once.
    """

    sse = False
    # Triton notices that an HTTP client has gone only after a first response, hence the role at once.
    opens_at_once = True

    def __init__(self, reply: Reply[BodyT], thread: SenderThread, loop: asyncio.AbstractEventLoop) -> None:
        self._reply = reply
        self._thread = thread
        self._loop = loop
        self._encoder: TextEncoder[BodyT] | None = None
        # Appended to by the event loop, emptied by the sender.
        self._items: deque[BodyT | _Text | _End] = deque()
        self._scheduled = False
        self._ending = False
        self._abandoned = False
        self._on_cancelled: Callable[[], object] = lambda: None
        # The sender's.
        self._started = False
        self._ended = False
        thread.open.add(self)

    @property
    def unread(self) -> int:
        """Responses that wait for the server."""
        return len(self._items)

    def begin(self, encoder: TextEncoder[BodyT]) -> None:
        """Write text with `encoder`."""
        self._encoder = encoder

    def text(self, index: int, text: str, usage: Usage | None) -> None:
        """A piece of text of choice `index`; pieces that wait for the server are joined."""
        self._put(_Text(index, text, usage))

    def write(self, chunk: BodyT) -> None:
        """One response."""
        self._put(chunk)

    def end(self) -> None:
        """The stream is complete. There is no [DONE] here: Triton has an end of its own."""
        self._put(_End())

    def answer(self, body: BodyT) -> None:
        """The only response."""
        self._put(body)
        self._put(_End())

    def fail(self, error: ApiError) -> None:
        """End with an error; the reply knows its form before any output and after it."""
        self._put(_End(error))

    def close(self) -> None:
        """End without a word: nobody reads it."""
        self._abandoned = True
        self._put(_End())

    def when_cancelled(self, cancel: Callable[[], object]) -> None:
        """Have `cancel` called, on the event loop, if the client goes away before the end."""
        self._on_cancelled = cancel

    def _put(self, item: BodyT | _Text | _End) -> None:
        if self._ending:
            return
        self._ending = isinstance(item, _End)
        self._items.append(item)
        if not self._scheduled:
            self._scheduled = True
            self._thread.put(self)

    def _cancelled(self) -> None:
        if not self._ending:
            try:
                self._on_cancelled()
            finally:
                self.close()

    # The sender's thread.

    def send_pending(self) -> None:
        """Send what there is; waits for the server."""
        # First, so that whatever comes from now on is handed over again.
        self._scheduled = False
        if self._ended:
            return
        try:
            self._send(*self._take())
        except Exception:
            logger.exception("a response could not be sent")
            self._finish()
            # Whatever is amiss, without an end the client would wait forever.
            self._reply.close()

    def look(self) -> None:
        """Find out whether the client has gone."""
        if self._ended:
            return
        try:
            gone = self._reply.is_cancelled()
        except Exception:
            # One stream's failure must not end the watch over the others.
            logger.exception("a request could not be asked for its cancellation")
            self._thread.open.discard(self)
            return
        if gone:
            self._thread.open.discard(self)
            self._loop.call_soon_threadsafe(self._cancelled)

    def _take(self) -> tuple[list[BodyT], _End | None]:
        """Pending bodies, with neighbouring pieces of text joined, and the end if it has come."""
        bodies: list[BodyT] = []
        texts: dict[int, _Text] = {}
        items = self._items
        while items:
            item = items.popleft()
            if isinstance(item, _Text):
                before = texts.get(item.choice)
                texts[item.choice] = item if before is None else item._replace(text=before.text + item.text)
                continue
            bodies += self._encoded(texts)
            texts = {}
            if isinstance(item, _End):
                return bodies, item
            bodies.append(item)
        return bodies + self._encoded(texts), None

    def _encoded(self, texts: dict[int, _Text]) -> list[BodyT]:
        if not texts:
            return []
        assert self._encoder is not None
        return [self._encoder.text(*text) for text in texts.values()]

    def _send(self, bodies: list[BodyT], end: _End | None) -> None:
        reply = self._reply
        if self._abandoned:
            bodies = []
        if end is not None:
            self._finish()
        error = None if end is None else end.error
        last = len(bodies) - 1
        for at, body in enumerate(bodies):
            self._started = True
            self._thread.send(reply, body, final=end is not None and error is None and at == last)
        if error is not None:
            self._thread.fail(reply, error, after_output=self._started)
        elif end is not None and not bodies:
            reply.close()

    def _finish(self) -> None:
        self._ended = True
        self._thread.open.discard(self)


class Throttle:
    """Spreads the responses of all senders: at most `count` in any `seconds`."""

    def __init__(self, count: int, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        # When each of the last responses was allowed.
        self._allowed = deque([-seconds] * count, maxlen=count)

    def wait(self) -> None:
        """Wait until one more may be sent."""
        with self._lock:
            now = time.monotonic()
            at = max(now, self._allowed[0] + self._seconds)
            self._allowed.append(at)
        if at > now:
            time.sleep(at - now)


class SenderThread:
    """Thread that sends the responses of some of the requests, one after the other.

    Args:
        name: name of the thread.
        throttle: throttle that all senders share.
    """

    def __init__(self, name: str, throttle: Throttle) -> None:
        self.open: set[ResponseSender[Any]] = set()
        """Requests that have not ended."""
        self._throttle = throttle
        self._queue: queue.SimpleQueue[ResponseSender[Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, sender: ResponseSender[Any]) -> None:
        """Have `sender` sent. From any thread."""
        self._queue.put(sender)

    def send(self, reply: Reply[BodyT], body: BodyT, *, final: bool) -> None:
        """One response, not faster than the server can take it."""
        self._throttle.wait()
        started = time.monotonic()
        reply.send(body, final=final)
        time.sleep(min(time.monotonic() - started, _LONGEST_REST_S))

    def fail(self, reply: Reply[BodyT], error: ApiError, *, after_output: bool) -> None:
        """An error as the last response: those of all requests come together when an engine is lost."""
        self._throttle.wait()
        reply.fail(error, after_output=after_output)

    def close(self) -> None:
        """Send what was put, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        next_look = time.monotonic() + _CANCELLATION_INTERVAL_S
        while True:
            try:
                sender = self._queue.get(timeout=max(0.0, next_look - time.monotonic()))
            except queue.Empty:
                pass
            else:
                if sender is None:
                    return
                sender.send_pending()
            if time.monotonic() >= next_look:
                for each in list(self.open):
                    each.look()
                next_look = time.monotonic() + _CANCELLATION_INTERVAL_S


class SenderThreads:
    """The sending threads of one instance; each request belongs to one, so that its responses keep their order."""

    def __init__(self, threads: int, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        throttle = Throttle(_MOST_RESPONSES, _MOST_RESPONSES_S)
        self._senders = [SenderThread(f"triton-sender-{number}", throttle) for number in range(threads)]
        self._turn = itertools.cycle(self._senders)
        self._answers: set[asyncio.Task[None]] = set()

    def answer(self, reply: Reply[BodyT], answer: Callable[[ResponseSender[BodyT]], Coroutine[Any, Any, None]]) -> None:
        """Answer a new request in a separate task, which is cancelled when its client has gone."""
        sender = self.sender_for(reply)
        task = self._loop.create_task(answer(sender))
        sender.when_cancelled(task.cancel)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def cancel_answers(self) -> None:
        """End the tasks of `answer` that are still at work."""
        tasks = list(self._answers)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def sender_for(self, reply: Reply[BodyT]) -> ResponseSender[BodyT]:
        """The sender of a new request."""
        return ResponseSender(reply, next(self._turn), self._loop)

    @property
    def open(self) -> int:
        """Requests that have not ended."""
        return sum(len(sender.open) for sender in self._senders)

    def close(self) -> None:
        """Send what is pending, then end the threads. After the event loop's last turn."""
        for sender in self._senders:
            sender.close()
