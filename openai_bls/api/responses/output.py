"""Output items of a response, built event by event.

Streams and whole answers both come from here, so they cannot differ: a stream is what goes to `EventWriter` meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Raw

from openai_bls.api.chat.logprobs import LogprobRenderer
from openai_bls.api.responses.events import Delta, EventWriter, Growing
from openai_bls.api.responses.items import Item, Status
from openai_bls.api.responses.sealing import seal
from openai_bls.api.responses.tools.calls import Call, call_item
from openai_bls.api.responses.tools.toolbox import Toolbox
from openai_bls.core.logprobs import TokenLogprob
from openai_bls.core.usage import FinishReason
from openai_bls.pipeline.generation.collector import Collector
from openai_bls.pipeline.generation.sequence_state import SequenceState


class _Content(Growing):
    """An item with one content part."""

    kind = ""
    """Name of the part's events."""

    def __init__(self, index: int, events: EventWriter) -> None:
        super().__init__(index, events)
        self._place["content_index"] = 0

    def _part(self, text: str) -> dict[str, Any]:
        """The content part with that text."""
        raise NotImplementedError

    def _content(self, status: Status, text: str) -> list[dict[str, Any]]:
        return [] if status == "in_progress" else [self._part(text)]

    def _begin(self) -> Delta:
        self._events.event("response.content_part.added", **self._place, part=self._part(""))
        return self._events.deltas(f"response.{self.kind}.delta", logprobs=self.kind == "output_text", **self._place)

    def _end(self, text: str) -> None:
        part = self._part(text)
        more = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
        self._events.event(f"response.{self.kind}.done", **self._place, text=text, **more)
        self._events.event("response.content_part.done", **self._place, part=part)


class _Message(_Content):
    prefix = "msg_"
    kind = "output_text"

    def __init__(self, index: int, events: EventWriter) -> None:
        super().__init__(index, events)
        self._logprobs: list[Raw] = []

    def add(self, text: str, logprobs: list[Raw]) -> int:
        self._logprobs += logprobs
        return super().add(text, logprobs)

    def item(self, status: Status, text: str) -> Item:
        content = self._content(status, text)
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "annotations": [], "logprobs": list(self._logprobs), "text": text}


class _Reasoning(_Content):
    prefix = "rs_"
    kind = "reasoning_text"

    def item(self, status: Status, text: str) -> Item:
        content = self._content(status, text)
        return {"id": self.id, "type": "reasoning", "status": status, "summary": [], "content": content}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": text}


class _SealedReasoning(_Reasoning):
    """Reasoning that a client without stored responses sends back as it is."""

    def item(self, status: Status, text: str) -> Item:
        item = super().item(status, text)
        return item if status == "in_progress" else {**item, "encrypted_content": seal("reasoning", text)}


class Output(Collector):
    """All output items of one response; takes the events of the request's one sequence.

    A message, reasoning or call is one item until something of another kind comes.

    Args:
        events: writer of the events.
        renderer: renderer of the log-probabilities of messages, if they are wanted.
        sealed: reasoning items have `encrypted_content`.
        on_begin: called once, before the first event.
        tools: tools of the request; None if it has none.
    """

    def __init__(
        self,
        events: EventWriter,
        renderer: LogprobRenderer | None = None,
        sealed: bool = False,
        on_begin: Callable[[], None] = lambda: None,
        tools: Toolbox | None = None,
    ) -> None:
        self._events = events
        self._tools = tools or Toolbox()
        self._renderer = renderer
        self._reasoning = _SealedReasoning if sealed else _Reasoning
        self._on_begin = on_begin
        self._items: list[Item] = []
        self._growing: Growing | None = None
        self._tokens: list[TokenLogprob] = []
        self.reason: FinishReason = "stop"

    def logprobs(self, sequence: SequenceState, tokens: list[TokenLogprob]) -> None:
        """Log-probabilities of the tokens whose text begins in the next event.

        Those of reasoning and calls are dropped; those of a marker go with the message that follows it.
        """
        self._tokens += tokens

    def text(self, sequence: SequenceState, text: str) -> None:
        """A piece of the message."""
        self._extend(_Message, text, self._take())

    def reasoning(self, sequence: SequenceState, text: str) -> None:
        """A piece of reasoning."""
        self._tokens.clear()
        self._extend(self._reasoning, text, [])

    def tool_call(self, sequence: SequenceState, index: int, call_id: str, name: str) -> None:
        """A call begins."""
        self._tokens.clear()
        self._open(call_item(self._tools.called(name), call_id, self._next(), self._events))

    def tool_arguments(self, sequence: SequenceState, index: int, fragment: str) -> None:
        """A piece of the call's arguments, or of a custom tool's input."""
        assert isinstance(self._growing, Call)
        self._tokens.clear()
        self._add(self._growing, fragment, [])

    def finished(self, sequence: SequenceState, reason: FinishReason) -> None:
        """End the output. An empty answer is an empty message."""
        self.reason = reason
        if self._growing is None:
            self._open(_Message(self._next(), self._events))
        elif self._tokens and isinstance(self._growing, _Message):
            # Tokens that have no text, at the very end.
            self._growing.add("", self._take())
        self._close("incomplete" if reason == "length" else "completed")

    @property
    def items(self) -> list[Item]:
        """Output items of the response; the one that is still growing is incomplete."""
        return [*self._items, self._growing.so_far()] if self._growing is not None else self._items

    def _extend(self, kind: type[_Message] | type[_Reasoning], text: str, logprobs: list[Raw]) -> None:
        growing = self._growing
        if not isinstance(growing, kind):
            growing = kind(self._next(), self._events)
            self._open(growing)
        self._add(growing, text, logprobs)

    def _add(self, growing: Growing, text: str, logprobs: list[Raw]) -> None:
        if size := growing.add(text, logprobs):
            self._hold(size)

    def _next(self) -> int:
        """Index of the next item."""
        return len(self._items) + (self._growing is not None)

    def _open(self, item: Growing) -> None:
        self._close("completed")
        if not self._items:
            self._on_begin()
        self._growing = item
        item.open()

    def _close(self, status: Status) -> None:
        if self._growing is not None:
            self._hold(self._growing.text.join())
            self._items.append(self._growing.close(status))
            self._growing = None

    def _take(self) -> list[Raw]:
        if not self._tokens or self._renderer is None:
            return []
        rendered = self._renderer.encoded(self._tokens)
        self._tokens.clear()
        self._hold(sum(map(len, rendered)))
        return rendered
