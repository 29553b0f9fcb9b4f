"""What the model thinks before it answers, found in the text while it streams.

Not here: the channels of gpt-oss, which are part of its whole message format, not a pair of markers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from openai_bls.output.events import ContentDelta, Event, ReasoningDelta
from openai_bls.output.markers import Markers

if TYPE_CHECKING:
    from openai_bls.output.events import OutputParser


class Reasoning(NamedTuple):
    """How a model marks its reasoning."""

    begin: str
    end: str
    also: str = ""
    """What a prompt may have between `begin` and its end."""

    def opened_by(self, prompt_tail: str) -> bool:
        """Whether what follows the prompt is within reasoning: the prompt ends with the opening marker.

        Only space may follow it, so that a marker in what a user wrote opens nothing. A marker of a pair, as in
        Qwen3's prompts with `enable_thinking` off, is closed.

        Args:
            prompt_tail: the end of the rendered prompt, some dozens of characters or more.
        """
        tail = prompt_tail.rstrip()
        return tail.endswith(self.begin) or (self.also != "" and tail.endswith(self.begin + self.also))

    def constraint(self, answer: dict[str, Any], *, opened: bool) -> dict[str, Any]:
        """`answer`, but only of what follows the reasoning. Both are formats of xgrammar's structural tags.

        Args:
            answer: what the answer must match.
            opened: the prompt has begun the reasoning; else the model may think first, or not.
        """
        begin = "" if opened else self.begin
        thought = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": self.end}
        # No more than models are used to: some would go on breaking lines.
        space = {"type": "regex", "pattern": r"\n{0,2}"}
        first = {"type": "sequence", "elements": [thought, space]}
        return {"type": "sequence", "elements": [first if opened else {"type": "optional", "content": first}, answer]}


class ReasoningParser:
    """Splits one text into reasoning and what follows it. How it is cut into pushes never matters.

    - Reasoning begins with the opening marker as the first thing in the text, space aside, or, if the prompt has
      opened it, with the text; an opening marker that such a text begins with is dropped. It ends with the first
      closing marker, and there is no more of it after that: any later marker is content, as is everything in a text
      that does not begin with reasoning. Where no opening marker is, none is guessed.
    - The markers are in no event. Reasoning is told without the white space at its beginning and end, content without
      the line breaks between it and the closing marker.
    - A text that ends within reasoning has no content.
    - Nothing within reasoning is a tool call.

    Args:
        reasoning: how the model marks it.
        opened: the prompt has opened it.
        inner: splits what follows; None tells all of it as content.
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
        """Whether what comes next is within reasoning, as far as the text so far tells."""
        # Whether an opening marker may still come, and whether one is not needed.
        self._at_start = True
        # The text's beginning while that is open; later the beginning of a closing marker.
        self._held = ""
        # White space at the text's beginning; later white space that is told only if reasoning goes on.
        self._space: list[str] = []
        self._told = False
        # Behind the closing marker: nothing but line breaks yet.
        self._break = False
        # All that comes is content as it stands.
        self._settled = False

    def push(self, text: str) -> list[Event]:
        """Take the next text; return what it brings."""
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

    def finish(self) -> list[Event]:
        """Return what was held back. No push may follow."""
        events: list[Event] = []
        held, self._held = self._held, ""
        if self._at_start:
            held = "".join(self._space) + held
            self._space.clear()
        if held and self.reasoning_open:
            self._reason(held, events)
        elif held:
            self._content(held, events)
        if self._inner is not None:
            events += self._inner.finish()
        return events

    def _read_start(self, text: str, events: list[Event]) -> bool:
        """Look for the opening marker; False while it may still come. What is left of the text is held."""
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
        """Return what follows reasoning."""
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
