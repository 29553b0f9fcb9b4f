"""Markdown on a terminal while it arrives: whole blocks are printed once, and only the last one is redrawn."""

from __future__ import annotations

import re
from types import TracebackType

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_DRAWS_PER_SECOND = 12


def whole_blocks(text: str) -> int:
    """Number of characters at the start of `text` in blocks that nothing can change any more.

    A block ends at an empty line outside a fence, if the next line is there and begins at the margin: an indented one
    may belong to the list before it.
    """
    end, at, fence, after_blank = 0, 0, "", False
    for line in text.splitlines(keepends=True):
        if after_blank and not fence and line[0] not in " \t\r\n":
            end = at
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[1]
        elif fence and found and found[1].startswith(fence) and not line.strip(" `~\r\n"):
            fence = ""
        after_blank = not line.strip()
        at += len(line)
    return end


class MarkdownStream:
    """Context in which text is added and shown."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tail = ""
        self._printed = False
        self._live = Live(console=console, refresh_per_second=_DRAWS_PER_SECOND, transient=True)

    def __enter__(self) -> MarkdownStream:
        self._live.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        # What is left is printed as a whole: the live part has its last lines alone.
        self._live.update(Text(""))
        self._live.stop()
        self._print(self._tail)
        self._tail = ""

    def add(self, text: str) -> None:
        """Show more."""
        self._tail += text
        end = whole_blocks(self._tail)
        if end:
            self._print(self._tail[:end])
            self._tail = self._tail[end:]
        self._live.update(_LastLines(self._tail, gap=self._printed))

    def _print(self, text: str) -> None:
        if text.strip():
            if self._printed:
                self._console.print()
            self._console.print(Markdown(text))
            self._printed = True


class _LastLines:
    """The end of a text as far as there is room: more cannot be redrawn."""

    def __init__(self, text: str, *, gap: bool) -> None:
        self._text = text
        self._gap = gap

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._text.strip():
            return
        lines = console.render_lines(Markdown(self._text), options, pad=False)
        lines = lines[-max(1, console.size.height - 2) :]
        if self._gap:
            yield Segment.line()
        for line in lines:
            yield from line
            yield Segment.line()
