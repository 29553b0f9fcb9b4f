"""The agents: how each is pointed at a server, by the lines of docs/guides/agents.md, and what its tools are called."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.triton.agents import task
from tests.triton.agents.task import Call, Case, Render
from tests.triton.conftest import ROOT

FOLDER = ROOT / ".venv-agents"
MODEL = "scripted"
CONTEXT = 200_000


class Run(NamedTuple):
    """What an agent is run with."""

    url: str
    """Root of the server, without `/v1`."""
    home: Path
    work: Path
    prompt: str


class Agent(NamedTuple):
    """One program."""

    name: str
    program: str
    """Path below .venv-agents."""
    start: Callable[[Run], tuple[list[str], dict[str, str]]]
    """Writes its settings; returns its arguments and variables."""
    turns: Callable[[Case, Path, Render], list[dict[str, Any]]]
    """What the model says in a case."""

    @property
    def path(self) -> Path:
        """The program."""
        return FOLDER / self.program

    @property
    def marks(self) -> tuple[pytest.MarkDecorator, ...]:
        """Leaves its tests out where it is not installed, before a server is started; in CI they fail."""
        if self.path.exists() or os.environ.get("OPENAI_BLS_TESTS_NEED_TOOLS"):
            return ()
        sentence = f"{self.name} is not installed: `make agents` installs it, with npm of Node 22 and with pip"
        return (pytest.mark.skip(sentence),)


def _with_calls(agent: str, calls: Callable[[Path, Case], list[Call]]) -> Callable[..., list[dict[str, Any]]]:
    return lambda case, work, render: task.turns(agent, case, calls(work, case), render)


def documented(section: str, language: str, run: Run) -> str:
    """The first block of a language in a section of docs/guides/agents.md, for this server and model."""
    page = (ROOT / "docs" / "guides" / "agents.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {section}\n.*?^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found is not None, (section, language)
    return found[1].replace("http://localhost:9000", run.url).replace("openai_bls", MODEL)


def exports(section: str, run: Run) -> dict[str, str]:
    """Variables that a section of that page sets."""
    lines = documented(section, "bash", run).splitlines()
    return dict(line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export "))


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def _codex(run: Run) -> tuple[list[str], dict[str, str]]:
    folder = run.home / ".codex"
    config = documented("Codex CLI", "toml", run).replace("/home/you/.codex", str(folder))
    _write(folder / "config.toml", config)
    _write(folder / "models.json", documented("Codex CLI", "json", run))
    argv = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", run.prompt]
    return argv, exports("Codex CLI", run)


def _codex_calls(work: Path, case: Case) -> list[Call]:
    patch = task.PATCH
    if case.breaks_grammar:
        patch = patch.replace("*** Begin Patch\n", "*** Begin Patch\nHere is what was asked for:\n")
        patch = patch.replace("*** End Patch\n", "*** End Patch\nI hope that helps!\n")
    return [
        Call("exec_command", {"cmd": "cat greet.py"}),
        Call("apply_patch", {"input": patch}),
        # Of a namespace; that there is no such agent is an answer like any other.
        Call("multi_agent_v1__close_agent", {"target": "nobody"}),
        Call("exec_command", {"cmd": task.RUN}),
    ]


def _claude(run: Run) -> tuple[list[str], dict[str, str]]:
    argv = ["-p", "--output-format", "json", "--dangerously-skip-permissions", run.prompt]
    # It refuses to run as root elsewhere than in a sandbox.
    return argv, exports("Claude Code", run) | {"IS_SANDBOX": "1"}


def _claude_calls(work: Path, case: Case) -> list[Call]:
    file = str(work / "greet.py")
    return [
        Call("Read", {"file_path": file}),
        Call("Edit", {"file_path": file, "old_string": '"hello"', "new_string": '"good day"'}),
        Call("Bash", {"command": task.RUN, "description": "Run the check"}),
    ]


def _opencode(run: Run) -> tuple[list[str], dict[str, str]]:
    _write(run.home / ".config" / "opencode" / "opencode.json", documented("OpenCode", "json", run))
    # The package for plug-ins is installed in the background, and it runs without.
    offline = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "npm_config_offline": "true"}
    return ["run", "--auto", run.prompt], offline


def _opencode_calls(work: Path, case: Case) -> list[Call]:
    file = str(work / "greet.py")
    return [
        Call("read", {"filePath": file}),
        Call("edit", {"filePath": file, "oldString": '"hello"', "newString": '"good day"'}),
        Call("bash", {"command": task.RUN, "description": "Run the check"}),
    ]


def _qwen(run: Run) -> tuple[list[str], dict[str, str]]:
    _write(run.home / ".qwen" / "settings.json", documented("Qwen Code", "json", run))
    return ["--auth-type", "openai", "--yolo", run.prompt], exports("Qwen Code", run)


def _qwen_calls(work: Path, case: Case) -> list[Call]:
    file = str(work / "greet.py")
    return [
        Call("read_file", {"file_path": file}),
        Call("edit", {"file_path": file, "old_string": '"hello"', "new_string": '"good day"'}),
        Call("run_shell_command", {"command": task.RUN, "description": "Run the check", "is_background": False}),
    ]


def _sdk(run: Run) -> tuple[list[str], dict[str, str]]:
    # Node looks for packages in the folders above the program.
    program = run.home / "sdk_agent.mjs"
    shutil.copy(Path(__file__).parent / program.name, program)
    (run.home / "node_modules").symlink_to(FOLDER / "node_modules")
    return [str(program), run.prompt], exports("The Agents SDK", run) | {"OPENAI_MODEL": MODEL}


def _sdk_calls(work: Path, case: Case) -> list[Call]:
    return [
        Call("read_file", {"path": "greet.py"}),
        Call("replace", {"path": "greet.py", "old": '"hello"', "new": '"good day"'}),
        Call("run", {"command": task.RUN}),
    ]


def _aider(run: Run) -> tuple[list[str], dict[str, str]]:
    known = run.home / "models.json"
    _write(known, documented("aider", "json", run))
    line = documented("aider", "bash", run).splitlines()[-1]
    argv = [*line.split()[1:], "--model-metadata-file", str(known), "--no-git", "--yes-always", "--map-tokens", "0"]
    argv += ["--no-gitignore", "--no-show-release-notes", "--no-auto-lint", "--auto-test", "--test-cmd", task.RUN]
    return [*argv, "--message", run.prompt, "greet.py"], exports("aider", run)


def _aider_turns(case: Case, work: Path, render: Render) -> list[dict[str, Any]]:
    """Edits are text, and the command is run after each: the first is wrong, and the second has to be asked for."""
    del work, render

    def block(old: str, new: str) -> str:
        edit = f'<<<<<<< SEARCH\n    return "{old}"\n=======\n    return "{new}"\n>>>>>>> REPLACE\n'
        return f"{task.DONE}\n\ngreet.py\n```python\n{edit}```\n"

    pace = {"tokens_per_step": case.tokens_per_step}
    own = task.marker("aider", case)
    return [
        {"when": [own, "AssertionError: good evening"], "text": block("good evening", "good day"), **pace},
        {"when": [own], "text": block("hello", "good evening"), "first_token_delay_ms": case.silence_s * 1000, **pace},
    ]


_BIN = "node_modules/.bin/"
CODEX = Agent("codex", f"{_BIN}codex", _codex, _with_calls("codex", _codex_calls))
CLAUDE = Agent("claude", f"{_BIN}claude", _claude, _with_calls("claude", _claude_calls))
SDK = Agent("sdk", "node_modules/@openai/agents/package.json", _sdk, _with_calls("sdk", _sdk_calls))
OPENCODE = Agent("opencode", f"{_BIN}opencode", _opencode, _with_calls("opencode", _opencode_calls))
QWEN = Agent("qwen", f"{_BIN}qwen", _qwen, _with_calls("qwen", _qwen_calls))
AIDER = Agent("aider", "bin/aider", _aider, _aider_turns)
AGENTS = (CODEX, CLAUDE, SDK, OPENCODE, QWEN, AIDER)
