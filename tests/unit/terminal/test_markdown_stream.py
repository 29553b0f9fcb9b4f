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


def shown(text: str, step: int, *, terminal: bool, height: int = 50) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=60, height=height, color_system=None)
    with MarkdownStream(console) as stream:
        for at in range(0, len(text), step):
            stream.add(text[at : at + step])
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_all_of_it_is_printed_once(step: int) -> None:
    def lines(written: str) -> list[str]:
        return [line.rstrip() for line in written.splitlines() if line.strip()]

    console = Console(file=io.StringIO(), width=60, color_system=None)
    console.print(Markdown(TEXT))
    file = console.file
    assert isinstance(file, io.StringIO)
    assert lines(shown(TEXT, step, terminal=False)) == lines(file.getvalue())


def test_a_long_answer_is_not_drawn_anew() -> None:
    """What is written grows with the text, not with its square, and no draw is higher than the screen."""
    short, long = ("\n\n".join(f"paragraph {n}" for n in range(count)) for count in (20, 80))
    written = [len(shown(text, 5, terminal=True, height=10)) for text in (short, long)]
    assert written[1] < 8 * written[0]
    code = "```\n" + "\n".join(f"line {n}" for n in range(60)) + "\n```\n"
    done = shown(code, 50, terminal=True, height=10)
    assert "line 0" in done
    assert "line 59" in done
    # A cursor that goes up goes no further than the screen is high.
    assert done.count("\x1b[1A") <= 10 * (len(code) // 50 + 2) * 2
