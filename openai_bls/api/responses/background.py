"""Background responses: made whether or not their clients wait, followed and cancelled by their ids."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from openai_bls.api.common.encoding import encode
from openai_bls.api.common.events.event_sink import EventSink
from openai_bls.api.responses.kept import is_response
from openai_bls.api.responses.parsing import CreateRequest
from openai_bls.api.responses.recording import Recording
from openai_bls.api.responses.store import Inputs, ResponseStore, Stored
from openai_bls.api.responses.writers import StreamedResponse, WholeResponse
from openai_bls.core.errors import ApiError, EngineError, InvalidRequestError
from openai_bls.pipeline.generation.generation import Generation
from openai_bls.pipeline.guards.guards import GuardedRequest

logger = logging.getLogger(__name__)


class BackgroundStream(StreamedResponse):
    """A stream whose first events come at once: the response is there, and waits for its turn."""

    def open(self) -> None:
        """Write the first events."""
        response = self.draft.queued()
        self._events.event("response.created", response=response)
        self._events.event("response.queued", response=response)

    def failed(self, error: ApiError) -> None:
        """An error ends the stream, and is what is found later."""
        self._keep(encode(self.draft.failed(self.items, self._translated(error))))
        super().failed(error)

    def cancelled(self) -> None:
        """The last event of a response that is cancelled."""
        message = "The response was cancelled."
        self._events.event("error", code="response_cancelled", message=message, param=None)
        self._sink.end()

    def _opening(self) -> bytes:
        return self._events.encode("response.in_progress", response=self.draft.in_progress())


class Job:
    """One response that is being made in the background.

    Args:
        wanted: request for the response.
        writer: writer of the answer.
        generation: generation that has begun.
        recording: recording of the response's events, if it streams.
        guarded: guards of the whole answer; None if there are none.
    """

    def __init__(
        self,
        wanted: CreateRequest,
        writer: WholeResponse | BackgroundStream,
        generation: Generation,
        recording: Recording | None,
        guarded: GuardedRequest | None,
    ) -> None:
        self.wanted = wanted
        self._draft = writer.draft
        self._writer = writer
        self._generation = generation
        self._guarded = guarded
        self.recording = recording
        self.task: asyncio.Task[None] | None = None
        """Waits for the answer of a response that does not stream."""

    @property
    def id(self) -> str:
        """Id of the response."""
        return self._draft.id

    def stored(self, encoded: bytes | None = None) -> Stored:
        """The response as the store has it; None is as it is just now."""
        if encoded is None:
            encoded = encode(self._draft.in_progress() if self._writer.items else self._draft.queued())
        wanted = self.wanted
        return Stored(encoded, wanted.kept, self.recording, wanted.body.include or (), wanted.key)

    def lost(self) -> Stored:
        """Record of a response that there is no room for."""
        error = EngineError("The response is larger than what can be kept of it.")
        return Stored(encode(self._draft.failed([], error)), Inputs((), None), key=self.wanted.key)

    def cancel(self) -> Stored:
        """Stop the work; the response as it has become."""
        self._generation.cancel()
        if self.task is not None:
            self.task.cancel()
        if isinstance(self._writer, BackgroundStream):
            self._writer.cancelled()
        return self.stored(encode(self._draft.cancelled(self._writer.items)))

    async def answered(self) -> bytes:
        """The whole response, as the guard leaves it; of an error the failed one."""
        guarded = self._guarded
        try:
            if guarded is None:
                return await self._whole()
            answer = await guarded.whole(self._whole())
            if not is_response(answer, self.id):
                raise EngineError("A guard of this server has made something else of the response.")
            return answer
        except ApiError as error:
            failure = self.wanted.translated(error)
        except Exception:
            logger.exception("a background response failed")
            failure = EngineError("The server had an error; see its log.")
        finally:
            self._generation.cancel()
        return encode(self._draft.failed(self._writer.items, failure))

    async def _whole(self) -> bytes:
        assert isinstance(self._writer, WholeResponse)
        return bytes(await self._writer.answer)


class Keeper(Protocol):
    """Owner of the store."""

    store: ResponseStore

    def converse(self, wanted: CreateRequest, encoded: bytes) -> bytes:
        """Add a response that has come to its end to its conversation; the response as the client is to see it."""


class Jobs:
    """Background responses that are being made. Belongs to the event loop's thread.

    Args:
        keeper: owner of the store that each response is put into at its end.
    """

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._running: dict[str, Job] = {}

    def get(self, response_id: str) -> Job | None:
        """The running job of that response."""
        return self._running.get(response_id)

    def run(self, job: Job) -> None:
        """Wait for the answer of a job that does not stream."""
        self._running[job.id] = job

        async def wait() -> None:
            self.ended(job.id, await job.answered())

        job.task = asyncio.get_running_loop().create_task(wait())

    def follow(self, job: Job) -> None:
        """Know a job that streams, and tells `ended` itself."""
        self._running[job.id] = job

    def ended(self, response_id: str, encoded: bytes) -> bytes:
        """Keep the response of a job; the response as the client is to see it."""
        job = self._running.pop(response_id, None)
        if job is None:
            return encoded
        encoded = self._keeper.converse(job.wanted, encoded)
        self._put(job, job.stored(encoded))
        return encoded

    def cancel(self, job: Job) -> Stored:
        """Cancel a job and keep what has become of it."""
        del self._running[job.id]
        stored = job.cancel()
        self._put(job, stored)
        return stored

    def _put(self, job: Job, stored: Stored) -> None:
        if not self._keeper.store.put(stored):
            logger.warning("response %s is not stored: there is no room for it", stored.id)
            # Else nothing would tell that there was one.
            self._keeper.store.put(job.lost())


class Following:
    """A client's stream of a recording; its end ends nothing else."""

    def __init__(self, recording: Recording, sink: EventSink, after: int = -1) -> None:
        recording.follow(sink, after)
        self._recording = recording
        self._sink = sink

    def cancel(self) -> None:
        """The client has gone."""
        self._recording.leave(self._sink)


def recording_of(stored: Stored) -> Recording:
    """The recording of a response's events.

    Raises:
        InvalidRequestError: there is none.
    """
    if stored.recording is None:
        raise InvalidRequestError(
            f"Response '{stored.id}' cannot be streamed: only one that was created with 'background' and 'stream' can "
            "be streamed again.",
            param="stream",
        )
    return stored.recording
