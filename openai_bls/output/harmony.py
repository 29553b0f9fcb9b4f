"""Harmony, the message format of gpt-oss: reasoning, answer and tool calls are messages on channels.

A turn of the model is one message or several, the first without `<|start|>assistant`, which ends the prompt::

    <|channel|>analysis<|message|>...<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>
    <|start|>assistant<|channel|>final<|message|>...<|return|>

`analysis` is reasoning. `commentary` with a recipient is a tool call, without one text for the user, as is `final`. The
recipient may also stand before the channel. `<|call|>` and `<|return|>` end the turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Set
from typing import Any

from openai_bls.output.events import AnswerEnd, ContentDelta, Event, ReasoningDelta, ToolCallArguments, ToolCallStart
from openai_bls.output.markers import Markers
from openai_bls.output.reasoning_parser import Reasoning
from openai_bls.output.tool_parsers.families.json_calls import hermes
from openai_bls.output.tool_parsers.formats import NAME, ToolFormat
from openai_bls.output.tool_parsers.parser import new_call_id

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKERS = frozenset({START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN})
FUNCTIONS = "functions."
_FINAL = f"{CHANNEL}final{MESSAGE}"
# Characters of a head; a longer one is no head.
_MAX_HEAD = 1_000
_HEAD = Markers(START, MESSAGE, END, CALL, RETURN)
_BODY = Markers(START, CHANNEL, END, CALL, RETURN)
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_TO_NAME = re.compile(re.escape(CHANNEL) + r"commentary to=([^\s<]+)")
_RECIPIENT = re.compile(r"(?:^|[\s>])to=([^\s<]+)")

HARMONY_REASONING = Reasoning(f"{CHANNEL}analysis{MESSAGE}", f"{END}{START}assistant", space="")
"""Markers of reasoning; the end marker includes the head of the message that follows."""
HARMONY_FORMAT = ToolFormat(
    "harmony",
    # `HarmonyParser` reads the calls.
    lambda _: hermes.SYNTAX,
    begin=f"{CHANNEL}commentary to={FUNCTIONS}{NAME} {CONSTRAIN}json{MESSAGE}",
    end="",
    trigger=f"{CHANNEL}commentary to=",
    # The other place of a recipient.
    excludes=(f" to={FUNCTIONS}",),
    special=MARKERS,
    ends=(START, CHANNEL, END, CALL, RETURN),
)


def is_harmony(chat_template: str) -> bool:
    """True if a chat template writes this format."""
    return all(mark in chat_template for mark in (f"{START}assistant", f"{CHANNEL}analysis{MESSAGE}", _FINAL))


def final(answer: dict[str, Any]) -> dict[str, Any]:
    """A format (`structured.Format`) of an answer, on its channel."""
    return {"type": "sequence", "elements": [{"type": "const_string", "value": _FINAL}, answer]}


class HarmonyParser:
    """Splits a turn into reasoning, content and tool calls, independent of how it is cut into pushes.

    - Heads and markers are in no event; a head that is cut off is dropped. Bodies are passed on exactly as written. Two
      messages of the same kind that follow each other are parted by a line break.
    - A message to a recipient is a call if the request has tools and the recipient is a function; else it is reasoning,
      since the model talks to nobody who is there. A call without arguments gets `{}` unless the text is cut there.
    - A text that begins with no head goes on with the message that the prompt has begun.
    - Nothing after the end of the turn is read.

    Args:
        has_tools: the request has tools.
        names: names of functions that are also recipients without `functions.`, on the channel `commentary`.
        reasoning_open: the prompt has begun a message of the `analysis` channel.
        new_id: makes the ids of calls.
    """

    __slots__ = (
        "_arguments",
        "_at_start",
        "_begun_reasoning",
        "_calls",
        "_has_tools",
        "_head",
        "_held",
        "_kind",
        "_last",
        "_names",
        "_new_id",
        "_over",
        "_part",
    )

    def __init__(
        self,
        *,
        has_tools: bool,
        names: Set[str] = frozenset(),
        reasoning_open: bool = False,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._has_tools = has_tools
        self._names = names
        self._new_id = new_id
        self._begun_reasoning = reasoning_open
        # A head may still be missing.
        self._at_start = True
        # A partial marker at the end of the text.
        self._held = ""
        # Text of the head; None within a body.
        self._head: str | None = ""
        self._kind = "reasoning" if reasoning_open else ""
        # Kind of the last body that had text, and whether a line break is due before the next.
        self._last = ""
        self._part = False
        self._calls = 0
        self._arguments = False
        self._over = False

    @property
    def reasoning_open(self) -> bool:
        """True while the next text belongs to the reasoning."""
        return self._kind == "reasoning"

    def push(self, text: str) -> list[Event]:
        """Take the next text; return the events that are certain."""
        events: list[Event] = []
        text = self._held + text
        self._held = ""
        if self._at_start and not self._read_start(text):
            return events
        place = 0
        while place < len(text) and not self._over:
            markers = _BODY if self._head is None else _HEAD
            found = markers.find(text, place)
            if found is None:
                end = markers.certain(text, place)
                self._held = text[end:]
                self._text(text[place:end], events)
                break
            self._text(text[place : found.start()], events)
            self._marker(found[0], events)
            place = found.end()
        return events

    def finish(self, *, cut: bool = False) -> list[Event]:
        """Return the events of the text held back; see `OutputParser`. No push may follow."""
        events: list[Event] = []
        held, self._held = self._held, ""
        if self._over:
            return events
        if cut:
            # Held back is the beginning of a head or a marker.
            held = held if not held.strip() else ""
        if self._at_start:
            # It began like a head, and ended before it was one.
            self._at_start = False
            self._head = None
            self._kind = "reasoning" if self._begun_reasoning else "content"
            if any(marker.startswith(held.strip()) for marker in (START, CHANNEL, MESSAGE)) and held.strip():
                held = ""
        if self._head is None:
            self._text(held, events)
            if not cut:
                self._close(events)
        self._over = True
        return events

    def _read_start(self, text: str) -> bool:
        """Decide whether the text begins with a head; False while that is open. The text is held then."""
        stripped = text.lstrip()
        heads = (START, CHANNEL, MESSAGE, "to=")
        if any(head.startswith(stripped) and head != stripped for head in heads):
            self._held = text
            return False
        self._at_start = False
        if not stripped.startswith(heads):
            self._head = None
            self._kind = "reasoning" if self._begun_reasoning else "content"
        else:
            self._kind = ""
        return True

    def _text(self, text: str, events: list[Event]) -> None:
        if not text:
            return
        if self._head is not None:
            self._head += text
            if len(self._head) > _MAX_HEAD:
                # No head, but text that lacks one.
                text, self._head, self._kind = self._head, None, "content"
            else:
                return
        if self._kind == "call":
            self._arguments = True
            events.append(ToolCallArguments(self._calls - 1, text))
            return
        if self._part:
            self._part = False
            if self._last == self._kind:
                text = "\n" + text
        self._last = self._kind
        events.append(ReasoningDelta(text) if self._kind == "reasoning" else ContentDelta(text))

    def _marker(self, marker: str, events: list[Event]) -> None:
        if marker == MESSAGE:
            self._open(self._head or "", events)
            return
        if self._head is None:
            self._close(events)
        # A channel within a body begins the head of another message, whose start is missing.
        self._head = marker if marker == CHANNEL else ""
        if marker in (CALL, RETURN):
            self._over = True
            events.append(AnswerEnd())

    def _open(self, head: str, events: list[Event]) -> None:
        """A message's body begins."""
        self._head = None
        channel, recipient = _CHANNEL.search(head), _RECIPIENT.search(head)
        name = recipient[1] if recipient is not None else ""
        if (bare := _TO_NAME.search(head)) is not None and bare[1] in self._names:
            name = FUNCTIONS + bare[1]
        if self._has_tools and name.startswith(FUNCTIONS) and name != FUNCTIONS:
            self._kind = "call"
            self._calls += 1
            self._arguments = False
            events.append(ToolCallStart(self._calls - 1, self._new_id(), name.removeprefix(FUNCTIONS)))
        elif name or (channel is not None and channel[1] == "analysis"):
            self._kind = "reasoning"
        else:
            self._kind = "content"

    def _close(self, events: list[Event]) -> None:
        """The body has ended."""
        if self._kind == "call":
            if not self._arguments:
                events.append(ToolCallArguments(self._calls - 1, "{}"))
            self._last = ""
        self._part = True
        self._kind = ""
