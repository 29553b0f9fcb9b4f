"""Reasoning parser: splits streamed text into reasoning and answer by a form's markers.

The channels of gpt-oss are part of its whole message format, which `harmony` reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from openai_bls.output.answer_parser import AnswerParser
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
    heads: tuple[str, ...] = ()
    """Markers that may stand before the answer, the whole of them first."""
    closers: tuple[str, ...] = ()
    """Markers that may stand after the answer, where a head stands before it."""
    bare: bool = False
    """The closers are dropped without a head too: no answer has them in its text."""
    unopened: bool = False
    """A text whose prompt neither opens nor closes the reasoning begins with it, with or without `begin`."""
    special: frozenset[str] = frozenset()
    """Markers that may be special tokens; empty is `begin` and `end`."""

    @property
    def kept(self) -> frozenset[str]:
        """Markers that the text must have although they may be special tokens."""
        return self.special or frozenset({self.begin, self.end})

    def opened_by(self, prompt_tail: str) -> bool:
        """True if the prompt ends within reasoning: with the opening marker and nothing but space after it.

        So a marker in a user's message opens nothing, nor does a closed pair, as in Qwen3's prompts with
        `enable_thinking` off.

        Args:
            prompt_tail: the end of the rendered prompt, at least some dozens of characters.
        """
        tail = prompt_tail.rstrip()
        if tail.endswith(self.begin) or (self.also != "" and tail.endswith(self.begin + self.also)):
            return True
        return self.unopened and not self.closed_by(prompt_tail)

    def closed_by(self, prompt_tail: str) -> bool:
        """True if the prompt ends with closed reasoning, or with what stands before an answer."""
        return prompt_tail.rstrip().endswith((self.end, *self.heads[:1]))

    def constraint(self, answer: dict[str, Any], *, opened: bool, excludes: Sequence[str] = ()) -> dict[str, Any]:
        """The constraint on reasoning followed by `answer`; both are of the form `structured.Format`.

        Args:
            answer: the format of the answer.
            opened: the prompt has begun the reasoning; else the model may reason first, or not.
            excludes: strings that the reasoning must not hold.
        """
        begin = "" if opened else self.begin
        text = {"type": "any_text", "excludes": list(excludes)} if excludes else {"type": "any_text"}
        thought = {"type": "tag", "begin": begin, "content": text, "end": self.end}
        space = [{"type": "regex", "pattern": self.space}] if self.space else []
        first = {"type": "sequence", "elements": [thought, *space]} if space else thought
        parts: list[dict[str, Any]] = [first if opened else {"type": "optional", "content": first}]
        if self.heads:
            # Before calls there may be another than before text.
            heads = {"type": "or", "elements": [{"type": "const_string", "value": head} for head in self.heads]}
            parts.append({"type": "optional", "content": {"type": "sequence", "elements": [heads, *space]}})
        return {"type": "sequence", "elements": [*parts, answer]}


class ReasoningParser:
    """Splits one text into reasoning and content, independent of how it is cut into pushes.

    - Reasoning begins with an opening marker at the start of the text, white space aside, or with the text if the
      prompt has opened it; an opening marker at the start of such a text is dropped. It ends with the first closing
      marker, or before the first of `calls`. Later markers are content, as is all of a text that does not begin with
      reasoning; but a closing marker at its start is dropped, and so is one after a call that ended the reasoning.
    - The markers are in no event, neither are those around the answer. Reasoning is stripped of white space at both
      ends, content of the line breaks after the closing marker and next to those of the answer.
    - In a form that marks its answer, reasoning may go on before it: a further opening marker begins it again.
    - A text that ends within reasoning has no content. Of one that is cut, the beginning of a marker is dropped.
    - Nothing within reasoning is a tool call.

    Args:
        reasoning: the model's markers.
        opened: the prompt has opened the reasoning.
        inner: parser of the text after the reasoning; None makes all of it content.
        calls: beginnings of calls that end the reasoning.
        held: a text that begins with no marker is held until a closing marker tells that it was reasoning, or a call
            or the end that it was not. For answers that are sent in one piece.
    """

    __slots__ = (
        "_answer",
        "_at_start",
        "_begin",
        "_calls",
        "_closers",
        "_heads",
        "_held",
        "_inner",
        "_marks",
        "_parts",
        "_reasoning",
        "_settled",
        "_space",
        "_told",
        "_waits",
        "reasoning_open",
    )

    def __init__(
        self,
        reasoning: Reasoning,
        *,
        opened: bool,
        inner: OutputParser | None = None,
        calls: Sequence[str] = (),
        held: bool = False,
    ) -> None:
        self._reasoning = reasoning
        # White space before a marker is skipped, that of the marker as well.
        self._begin = reasoning.begin.lstrip()
        self._inner = inner
        self._calls = tuple(calls)
        self._marks = Markers(reasoning.end, *calls)
        self.reasoning_open = opened
        """True while the next text belongs to the reasoning."""
        # Text that may begin a marker.
        self._held = ""
        # An opening marker may still come.
        self._at_start = True
        self._waits = held and not opened
        # Text of which only what follows tells what it is.
        self._parts: list[str] | None = None
        # White space at the start, or before the answer; within reasoning what is sent only if it goes on.
        self._space: list[str] = []
        self._told = False
        # Markers that may still come before the answer, and those that end it then.
        self._heads: tuple[str, ...] = ()
        self._closers = reasoning.closers if reasoning.bare else ()
        self._answer: AnswerParser | None = None
        # All further text is content as it is.
        self._settled = False

    def push(self, text: str) -> list[Event]:
        """Take the next text; return the events that are certain."""
        if self._settled:
            return [ContentDelta(text)] if text else []
        events: list[Event] = []
        text, self._held = self._held + text, ""
        while self._answer is None:
            rest = self._read(text, events)
            if rest is None:
                return events
            text = rest
        if text:
            events += self._answer.push(text)
            self._settled = self._answer.settled
        return events

    def finish(self, *, cut: bool = False) -> list[Event]:
        """Return the events of the text held back; see `OutputParser`. No push may follow."""
        events: list[Event] = []
        # Of a text that nothing has opened no marker is known.
        held, self._held = "" if cut and self._parts is None else self._held, ""
        if self._answer is None:
            if self._parts is not None:
                held = "".join(self._parts) + held
                self._parts = None
            elif self._at_start or not self.reasoning_open:
                space = self._space_text()
                # Of the line breaks after reasoning nothing is left.
                held = space + held if self._at_start else (space + held).lstrip("\n")
            self._at_start = False
            if self.reasoning_open:
                self._reason(held, events)
                held = ""
            self._answer = AnswerParser(self._inner, self._closers)
            events += self._answer.push(held) if held else []
        return events + self._answer.finish(cut=cut)

    def _read(self, text: str, events: list[Event]) -> str | None:
        """Read on before the answer; the rest of the text, or None while it is open what that is."""
        if self._parts is not None:
            return self._read_unknown(text, self._parts, events)
        if self._at_start:
            return self._read_start(text)
        return self._read_reasoning(text, events) if self.reasoning_open else self._read_heads(text)

    def _read_start(self, text: str) -> str | None:
        """Match a marker at the start of the text."""
        end = self._reasoning.end
        others = () if self.reasoning_open else (end, *self._all_heads())
        rest, marker = self._leading(text, (self._begin, *others))
        if marker is None:
            return None
        self._at_start = False
        space = self._space_text()
        if marker in others:
            self._end_reasoning()
            if marker != end:
                self._drop_head(marker)
        elif marker:
            self.reasoning_open = True
        elif not self.reasoning_open:
            rest = space + rest
            if self._waits:
                self._parts = []
            else:
                self._begin_answer()
        return rest

    def _leading(self, text: str, markers: Sequence[str]) -> tuple[str, str | None]:
        """Take a marker from the start of a text, white space aside, which is kept.

        Returns:
            The rest, and the marker: empty if there is none, None while that is open. The rest is held then.
        """
        stripped = text.lstrip()
        self._space.append(text[: len(text) - len(stripped)])
        for marker in markers:
            if stripped.startswith(marker):
                return stripped[len(marker) :], marker
        if any(marker.startswith(stripped) for marker in markers):
            self._held = stripped
            return "", None
        return stripped, ""

    def _read_unknown(self, text: str, parts: list[str], events: list[Event]) -> str | None:
        """Hold a text that may be reasoning that nothing has opened."""
        found = self._marks.find(text)
        if found is None:
            end = self._marks.certain(text)
            parts.append(text[:end])
            self._held = text[end:]
            return None
        self._parts = None
        before = "".join(parts)
        if found[0] in self._calls:
            self._begin_answer()
            return before + text
        self._reason(before + text[: found.start()], events)
        self._end_reasoning()
        return text[found.end() :]

    def _read_reasoning(self, text: str, events: list[Event]) -> str | None:
        """Read reasoning up to a marker that ends it."""
        found = self._marks.find(text)
        if found is None:
            end = self._marks.certain(text)
            self._held = text[end:]
            self._reason(text[:end], events)
            return None
        self._reason(text[: found.start()], events)
        self._end_reasoning()
        if found[0] not in self._calls:
            return text[found.end() :]
        # The closing marker may come late.
        self._closers = (*self._closers, self._reasoning.end)
        self._begin_answer()
        return text[found.start() :]

    def _read_heads(self, text: str) -> str | None:
        """Match the markers before the answer."""
        if not self._heads:
            text = (self._space_text() + text).lstrip("\n")
            if not text:
                return None
            self._begin_answer()
            return text
        rest, marker = self._leading(text, self._heads)
        if marker is None:
            return None
        space = self._space_text()
        if not marker:
            self._heads = ()
            return space + rest
        if marker == self._begin:
            self.reasoning_open = True
            self._space = ["\n"] if self._told else []
            self._told = False
        else:
            self._drop_head(marker)
        return rest

    def _drop_head(self, marker: str) -> None:
        """Take a marker before the answer, whose end has one too then."""
        self._closers = self._reasoning.closers
        # One that begins or ends with it, or it with one, may have come in pieces: it is not waited for either.
        self._heads = tuple(head for head in self._heads if head == self._begin or not _share_an_end(head, marker))

    def _end_reasoning(self) -> None:
        self.reasoning_open = False
        self._space.clear()
        heads = self._all_heads()
        self._heads = (*heads, self._begin) if heads else ()

    def _all_heads(self) -> tuple[str, ...]:
        return tuple(head.lstrip() for head in self._reasoning.heads)

    def _begin_answer(self) -> None:
        self._answer = AnswerParser(self._inner, self._closers)

    def _reason(self, text: str, events: list[Event]) -> None:
        if not self._told:
            text = text.lstrip()
        stripped = text.rstrip()
        if stripped:
            self._told = True
            events.append(ReasoningDelta("".join(self._space) + stripped))
            self._space.clear()
        self._space.append(text[len(stripped) :])

    def _space_text(self) -> str:
        space = "".join(self._space)
        self._space.clear()
        return space


def _share_an_end(one: str, other: str) -> bool:
    """True if one of the markers begins or ends with the other."""
    short, long = sorted((one, other), key=len)
    return long.startswith(short) or long.endswith(short)
