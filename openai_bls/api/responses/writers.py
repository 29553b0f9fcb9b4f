"""Writers of the Responses API: a stream of events, or one whole response."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Raw

from openai_bls.api.chat.logprobs import LogprobRenderer
from openai_bls.api.common.encoding import encode
from openai_bls.api.common.events.answer_future import AnswerFuture
from openai_bls.api.common.events.event_sink import EventSink
from openai_bls.api.responses.events import EventWriter
from openai_bls.api.responses.output import Output
from openai_bls.api.responses.responses import Draft
from openai_bls.api.responses.tools.toolbox import Toolbox
from openai_bls.core.errors import ApiError
from openai_bls.core.usage import Usage
from openai_bls.pipeline.generation.writer import Writer

Keep = Callable[[bytes], bytes]
"""Receiver of a finished response as JSON text; it returns the response that the client is told."""


class WholeResponse(Output, AnswerFuture[Raw]):
    """Resolves `answer` with the `response` object, as JSON text, at the end.

    Args:
        draft: draft of the response.
        renderer: renderer of log-probabilities, for requests that want them.
        sealed: reasoning items have `encrypted_content`.
        tools: tools of the request; None if it has none.
    """

    def __init__(
        self, draft: Draft, renderer: LogprobRenderer | None, sealed: bool, tools: Toolbox | None = None
    ) -> None:
        Output.__init__(self, EventWriter(None), renderer, sealed, tools=tools)
        AnswerFuture.__init__(self)
        self.draft = draft

    def make_answer(self, usage: Usage) -> Raw:
        """The response."""
        return Raw(encode(self.draft.finished(self.items, self.reason, usage)))


class StreamedResponse(Output):
    """Writes events. The first ones wait for the first output, so that an error before it can have its own status.

    Args:
        sink: receiver of the events.
        translated: an error of the chat completion with this API's names.
        keep: called with the response at its end.
        draft: draft of the response.
        renderer: renderer of log-probabilities, for requests that want them.
        sealed: reasoning items have `encrypted_content`.
        tools: tools of the request; None if it has none.
    """

    def __init__(
        self,
        sink: EventSink,
        translated: Callable[[ApiError], ApiError],
        keep: Keep,
        draft: Draft,
        renderer: LogprobRenderer | None,
        sealed: bool,
        tools: Toolbox | None = None,
    ) -> None:
        self._sink = sink
        self._translated = translated
        self._keep = keep
        self.draft = draft
        self._whole: Raw | None = None
        super().__init__(EventWriter(sink.write), renderer, sealed, self._begin, tools)
        self._begun = False

    def count_by(self, count: Callable[[int], None]) -> None:
        """Have what is kept counted five times: four events at its end have all of an item."""
        super().count_by(lambda size: count(5 * size))

    def recorded(self) -> tuple[Writer, Callable[[Usage], Raw | None]]:
        """This writer, whose last event has the whole response."""
        return self, lambda usage: self._whole

    def done(self, usage: Usage) -> None:
        """The last event."""
        response = self.draft.finished(self.items, self.reason, usage)
        # Encoded just once: it may be long.
        encoded = self._keep(encode(response))
        self._whole = Raw(encoded)
        self._events.event(f"response.{response['status']}", response=self._whole)
        self._sink.end()

    def failed(self, error: ApiError) -> None:
        """An error ends the stream."""
        error = self._translated(error)
        encode = self._events.encode
        opening = b"" if self._begun else self._opening()
        told = encode("error", code=error.code or error.type, message=error.message, param=error.param)
        end = encode("response.failed", response=self.draft.failed(self.items, error))
        self._sink.fail(error, opening + told + end)

    def _begin(self) -> None:
        self._begun = True
        self._sink.write(self._opening())

    def _opening(self) -> bytes:
        response = self.draft.in_progress()
        encode = self._events.encode
        return encode("response.created", response=response) + encode("response.in_progress", response=response)
