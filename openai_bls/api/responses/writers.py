"""Writers of the Responses API: a stream of events, or one whole response."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Raw

from openai_bls.api.chat.logprobs import LogprobRenderer
from openai_bls.api.common.answer_future import AnswerFuture
from openai_bls.api.common.encoding import encode
from openai_bls.api.common.event_sink import EventSink
from openai_bls.api.responses.events import EventWriter
from openai_bls.api.responses.output import Output
from openai_bls.api.responses.responses import Draft
from openai_bls.core.errors import ApiError
from openai_bls.core.usage import Usage

Keep = Callable[[dict[str, Any], bytes], None]
"""Receiver of a finished response and its JSON text."""


class _ResponseWriter(Output):
    """Output items of a response that is kept at its end.

    Args:
        events: of the stream.
        draft: of the response.
        renderer: writes log-probabilities, for requests that want them.
        keep: is given the response at its end.
        on_begin: called once, before the first event.
    """

    def __init__(
        self,
        events: EventWriter,
        draft: Draft,
        renderer: LogprobRenderer | None,
        keep: Keep,
        on_begin: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(events, renderer, on_begin)
        self._draft = draft
        self._keep = keep

    def _finished(self, usage: Usage) -> tuple[str, Raw]:
        """The status and the JSON text of the response, which is encoded just once: it may be long."""
        response = self._draft.finished(self.items, self.reason, usage)
        encoded = encode(response)
        self._keep(response, encoded)
        return response["status"], Raw(encoded)


class WholeResponse(_ResponseWriter, AnswerFuture[Raw]):
    """Resolves `answer` with the `response` object, as JSON text, at the end.

    Args:
        draft: of the response.
        renderer: writes log-probabilities, for requests that want them.
        keep: is given the response at its end.
    """

    def __init__(self, draft: Draft, renderer: LogprobRenderer | None, keep: Keep) -> None:
        _ResponseWriter.__init__(self, EventWriter(None), draft, renderer, keep)
        AnswerFuture.__init__(self)

    def make_answer(self, usage: Usage) -> Raw:
        """The response."""
        return self._finished(usage)[1]


class StreamedResponse(_ResponseWriter):
    """Writes events. The first ones wait for the first output, so that an error before it can have its own status.

    Args:
        sink: receiver of the events.
        translated: an error of the chat completion with this API's names.
        draft: of the response.
        renderer: writes log-probabilities, for requests that want them.
        keep: is given the response at its end.
    """

    def __init__(
        self,
        sink: EventSink,
        translated: Callable[[ApiError], ApiError],
        draft: Draft,
        renderer: LogprobRenderer | None,
        keep: Keep,
    ) -> None:
        self._sink = sink
        self._translated = translated
        super().__init__(EventWriter(sink.write), draft, renderer, keep, self._begin)
        self._begun = False

    def done(self, usage: Usage) -> None:
        """The last event."""
        status, response = self._finished(usage)
        self._events.event(f"response.{status}", response=response)
        self._sink.end()

    def failed(self, error: ApiError) -> None:
        """An error ends the stream."""
        error = self._translated(error)
        encode = self._events.encode
        opening = b"" if self._begun else self._opening()
        told = encode("error", code=error.code or error.type, message=error.message, param=error.param)
        end = encode("response.failed", response=self._draft.failed(self.items, error))
        self._sink.fail(error, opening + told + end)

    def _begin(self) -> None:
        self._begun = True
        self._sink.write(self._opening())

    def _opening(self) -> bytes:
        response = self._draft.in_progress()
        encode = self._events.encode
        return encode("response.created", response=response) + encode("response.in_progress", response=response)
