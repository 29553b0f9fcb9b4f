"""Recording of a background stream: its events, for clients that come and go."""

from __future__ import annotations

from openai_bls.api.common.events.event_sink import EventSink
from openai_bls.core.errors import ApiError, InvalidRequestError

MAX_BYTES = 16 * 1024 * 1024
"""Bytes of events that one recording keeps; of more, the oldest are dropped."""


class Recording:
    """Sink of a stream's events, which it passes on to those who follow it. Belongs to the event loop's thread."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._events: list[bytes] = []
        self._dropped = 0
        """Number of the first event that is kept."""
        self._followers: dict[EventSink, int] = {}
        """Followers, each with the number of the last event that it does not want."""
        self._ended = False
        self.size = 0
        """Bytes of the events that are kept."""

    def write(self, chunk: bytes) -> None:
        """One or several events, encoded."""
        first = self._dropped + len(self._events)
        events = self._keep(chunk)
        for follower, after in self._followers.items():
            # One that asked for events which were still to come gets those alone.
            wanted = chunk if after < first else b"".join(events[after + 1 - first :])
            if wanted:
                follower.write(wanted)

    def end(self) -> None:
        """The stream is complete."""
        self._ended = True
        for follower in self._followers:
            follower.end()
        self._followers.clear()

    def fail(self, error: ApiError, event: bytes) -> None:
        """The stream ends with an error, encoded as `event`."""
        # Its followers have had events before: they get this one as an event, too.
        self.write(event)
        self.end()

    def follow(self, sink: EventSink, after: int = -1) -> None:
        """Pass on the events with numbers above `after`: those that have been, and those to come.

        Raises:
            InvalidRequestError: some of them are no longer kept.
        """
        if after + 1 < self._dropped:
            raise InvalidRequestError(
                f"The events of this response before number {self._dropped} are no longer kept: set 'starting_after' "
                f"to at least {self._dropped - 1}.",
                param="starting_after",
            )
        past = b"".join(self._events[after + 1 - self._dropped :])
        if past:
            sink.write(past)
        if self._ended:
            sink.end()
        else:
            self._followers[sink] = after

    def leave(self, sink: EventSink) -> None:
        """Pass nothing more on to a follower. Harmless after the end."""
        self._followers.pop(sink, None)

    def _keep(self, chunk: bytes) -> list[bytes]:
        """The events of a chunk, which are kept."""
        # JSON text has no line feeds of its own.
        events = [event + b"\n\n" for event in chunk.removesuffix(b"\n\n").split(b"\n\n")]
        self._events += events
        self.size += len(chunk)
        dropped = 0
        # Some at once, since what stays is moved.
        room = self._max_bytes * 3 // 4 if self.size > self._max_bytes else self.size
        while self.size > room and dropped < len(self._events) - 1:
            self.size -= len(self._events[dropped])
            dropped += 1
        if dropped:
            del self._events[:dropped]
            self._dropped += dropped
        return events
