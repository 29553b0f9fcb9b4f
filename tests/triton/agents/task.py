"""The task that every agent is given, and what the model says to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

BEFORE = 'def greet():\n    return "hello"\n'
AFTER = 'def greet():\n    return "good day"\n'
CHECK = """\
from pathlib import Path

from greet import greet

assert greet() == "good day", greet()
Path("checked").write_text("good day")
print("the check has passed")
"""
RUN = "python3 check.py"
DONE = "It is done: greet() says good day, and the check has passed."
PATCH = """\
*** Begin Patch
*** Update File: greet.py
@@
 def greet():
-    return "hello"
+    return "good day"
*** End Patch
"""


class Case(NamedTuple):
    """How the model writes."""

    name: str
    tokens_per_step: int = 1
    silence_s: float = 0.0
    """Silence before the second answer."""
    bad_arguments: bool = False
    """The first call's arguments are no JSON."""
    breaks_grammar: bool = False
    """The model would write prose into its patch."""


class Call(NamedTuple):
    """A tool call of the model."""

    name: str
    arguments: Mapping[str, Any]


Render = Callable[[str, Mapping[str, Any]], str]
"""A call as a model's format writes it."""


def hermes(name: str, arguments: Mapping[str, Any]) -> str:
    """The format of Qwen2.5, Qwen3 and Hermes."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def qwen3_coder(name: str, arguments: Mapping[str, Any]) -> str:
    """The format of Qwen3-Coder."""
    texts = ((key, value if isinstance(value, str) else json.dumps(value)) for key, value in arguments.items())
    parameters = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts)
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


BAD_CALL = '<tool_call>\n{{"name": "{name}", "arguments": {{"path": "C:\\new\\x", \'it\': }}}}\n</tool_call>'
"""A call whose arguments no reader takes for JSON: a bad escape, single quotes, a value that is missing."""


def marker(agent: str, case: Case) -> str:
    """What tells this run's prompts from those of others."""
    return f"[{agent} {case.name}]"


def prompt(agent: str, case: Case) -> str:
    """The user's message."""
    return f"{marker(agent, case)} Make greet() of greet.py return good day, then run {RUN}."


def place(work: Path) -> None:
    """Put the task's files into a fresh folder."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    (work / "greet.py").write_text(BEFORE, encoding="utf-8")
    (work / "check.py").write_text(CHECK, encoding="utf-8")


def turns(agent: str, case: Case, calls: list[Call], render: Render) -> list[dict[str, Any]]:
    """Turns of the null engine's script: a call for each number of tool results that the prompt has, then the end.

    Prompts without tools are others: for a title, say.
    """
    texts = [f"I will call {call.name}.\n{render(call.name, call.arguments)}" for call in calls]
    if case.bad_arguments:
        texts.insert(0, BAD_CALL.format(name=calls[0].name))
    found: list[dict[str, Any]] = []
    for count, text in enumerate([*texts, DONE]):
        found.append(
            {
                "when": [marker(agent, case), "<tools>"],
                "counts": {"<tool_response>": count},
                "text": text,
                "tokens_per_step": case.tokens_per_step,
                "first_token_delay_ms": case.silence_s * 1000 if count == 1 else 0,
            }
        )
    return found
