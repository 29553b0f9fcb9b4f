"""Markdown that arrives piece by piece."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.markdown import Markdown

from openai_bls.terminal.markdown_stream import MarkdownStream, whole_blocks

TEXT = """# Head

Some **words** and
more.

```python
first = 1

second = 2
```

1. one

   still one
2. two

Last.
"""


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("one\n", ""),
        ("one\n\n", ""),
        ("one\n\ntwo", "one\n\n"),
        ("- one\n\n  two", ""),
        ("```\none\n\ntwo", ""),
        ("```\none\n\ntwo\n```\n\nthree", "```\none\n\ntwo\n```\n\n"),
        ("````\n```\n\ntwo", ""),
        ("one\n\ntwo\n\nthree", "one\n\ntwo\n\n"),
    ],
)
def test_whole_blocks(text: str, whole: str) -> None:
    assert text[: whole_blocks(text)] == whole


class Screen(io.StringIO):
    """Keeps each write, which is one draw."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[str] = []

    def write(self, text: str) -> int:
        self.draws.append(text)
        return super().write(text)


def shown(text: str, step: int, *, terminal: bool, height: int = 50) -> Screen:
    screen = Screen()
    console = Console(file=screen, force_terminal=terminal, width=60, height=height, color_system=None)
    with MarkdownStream(console) as stream:
        for at in range(0, len(text), step):
            stream.add(text[at : at + step])
    return screen


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_all_of_it_is_printed_once(step: int) -> None:
    def lines(written: str) -> list[str]:
        return [line.rstrip() for line in written.splitlines() if line.strip()]

    whole = Screen()
    Console(file=whole, width=60, color_system=None).print(Markdown(TEXT))
    assert lines(shown(TEXT, step, terminal=False).getvalue()) == lines(whole.getvalue())


def test_a_long_answer_is_not_drawn_anew() -> None:
    """No draw has more than the last block, however long the text is, and none is higher than the screen."""
    text = "\n\n".join(f"paragraph {n}" for n in range(80))
    assert max(draw.count("paragraph") for draw in shown(text, 5, terminal=True, height=10).draws) <= 2
    code = "```\n" + "\n".join(f"line {n}" for n in range(60)) + "\n```\n"
    done = shown(code, 50, terminal=True, height=10)
    assert "line 0" in done.getvalue()
    assert "line 59" in done.getvalue()
    # A cursor that goes up goes no further than the screen is high.
    assert max(draw.count("\x1b[1A") for draw in done.draws) <= 10
