"""Reasoning parser: splits streamed text into reasoning and answer by a pair of markers.

The channels of gpt-oss are part of its whole message format, which `harmony` reads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from openai_bls.output.events import ContentDelta, Event, OutputParser, ReasoningDelta
from openai_bls.output.markers import Markers


class Reasoning(NamedTuple):
    """The markers of a model's reasoning."""

    begin: str
    end: str
    also: str = ""
    """Text that a prompt may have after `begin`."""
    space: str = r"\n{0,2}"
    """Regular expression of what may stand between the end and the answer: two line breaks, as in training data;
    without a bound some models repeat them. Empty is nothing."""

    def opened_by(self, prompt_tail: str) -> bool:
        """True if the prompt ends within reasoning: with the opening marker and nothing but space after it.

        So a marker in a user's message opens nothing, nor does a closed pair, as in Qwen3's prompts with
        `enable_thinking` off.

        Args:
            prompt_tail: the end of the rendered prompt, at least some dozens of characters.
        """
        tail = prompt_tail.rstrip()
        return tail.endswith(self.begin) or (self.also != "" and tail.endswith(self.begin + self.also))

    def constraint(self, answer: dict[str, Any], *, opened: bool) -> dict[str, Any]:
        """The constraint on reasoning followed by `answer`; both are of the form `structured.Format`.

        Args:
            answer: the format of the answer.
            opened: the prompt has begun the reasoning; else the model may reason first, or not.
        """
        begin = "" if opened else self.begin
        thought = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": self.end}
        space = {"type": "regex", "pattern": self.space}
        first = {"type": "sequence", "elements": [thought, space]} if self.space else thought
        return {"type": "sequence", "elements": [first if opened else {"type": "optional", "content": first}, answer]}


class ReasoningParser:
    """Splits one text into reasoning and content, independent of how it is cut into pushes.

    - Reasoning begins with an opening marker at the start of the text, white space aside, or with the text if the
      prompt has opened it; an opening marker at the start of such a text is dropped. It ends with the first closing
      marker. Later markers are content, as is all of a text that does not begin with reasoning.
    - The markers are in no event. Reasoning is stripped of white space at both ends, content of the line breaks after
      the closing marker.
    - A text that ends within reasoning has no content. Of one that is cut, the beginning of a marker is dropped.
    - Nothing within reasoning is a tool call.

    Args:
        reasoning: the model's markers.
        opened: the prompt has opened the reasoning.
        inner: parser of the text after the reasoning; None makes all of it content.
    """

    __slots__ = (
        "_at_start",
        "_begin",
        "_break",
        "_end",
        "_held",
        "_inner",
        "_settled",
        "_space",
        "_told",
        "reasoning_open",
    )

    def __init__(self, reasoning: Reasoning, *, opened: bool, inner: OutputParser | None = None) -> None:
        self._begin = reasoning.begin
        self._end = Markers(reasoning.end)
        self._inner = inner
        self.reasoning_open = opened
        """True while the next text belongs to the reasoning."""
        # An opening marker may still come.
        self._at_start = True
        # Text that may begin an opening marker, later a closing one.
        self._held = ""
        # Leading white space; later white space that is sent only if reasoning goes on.
        self._space: list[str] = []
        self._told = False
        # Only line breaks since the closing marker.
        self._break = False
        # All further text is content as it is.
        self._settled = False

    def push(self, text: str) -> list[Event]:
        """Take the next text; return the events that are certain."""
        if self._settled:
            return [ContentDelta(text)] if text else []
        events: list[Event] = []
        if self._at_start:
            if not self._read_start(self._held + text, events):
                return events
            text, self._held = self._held, ""
        if self.reasoning_open:
            text = self._read_reasoning(self._held + text, events)
        if text:
            self._content(text, events)
        return events

    def finish(self, *, cut: bool = False) -> list[Event]:
        """Return the events of the text held back; see `OutputParser`. No push may follow."""
        events: list[Event] = []
        held, self._held = self._held, ""
        if cut:
            held = ""
        if self._at_start:
            held = "".join(self._space) + held
            self._space.clear()
        if held and self.reasoning_open:
            self._reason(held, events)
        elif held:
            self._content(held, events)
        if self._inner is not None:
            events += self._inner.finish(cut=cut)
        return events

    def _read_start(self, text: str, events: list[Event]) -> bool:
        """Match the opening marker; False while it is incomplete. The rest of the text is held."""
        stripped = text.lstrip()
        self._space.append(text[: len(text) - len(stripped)])
        self._held = stripped
        if len(stripped) < len(self._begin) and self._begin.startswith(stripped):
            return False
        self._at_start = False
        space = "".join(self._space)
        self._space.clear()
        if stripped.startswith(self._begin):
            self.reasoning_open = True
            self._held = stripped[len(self._begin) :]
        else:
            self._held = space + stripped
        return True

    def _read_reasoning(self, text: str, events: list[Event]) -> str:
        """Return the text after the reasoning."""
        found = self._end.find(text)
        if found is None:
            end = self._end.certain(text, 0)
            self._held = text[end:]
            self._reason(text[:end], events)
            return ""
        self._held = ""
        self.reasoning_open = False
        self._break = True
        self._reason(text[: found.start()], events)
        return text[found.end() :]

    def _reason(self, text: str, events: list[Event]) -> None:
        if not self._told:
            text = text.lstrip()
        stripped = text.rstrip()
        if stripped:
            self._told = True
            events.append(ReasoningDelta("".join(self._space) + stripped))
            self._space.clear()
        self._space.append(text[len(stripped) :])

    def _content(self, text: str, events: list[Event]) -> None:
        if self._break:
            text = text.lstrip("\n")
            if not text:
                return
            self._break = False
        if self._inner is not None:
            events += self._inner.push(text)
        else:
            self._settled = True
            events.append(ContentDelta(text))
