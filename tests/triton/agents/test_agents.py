"""Real coding agents against a real server, to the end of a task: all but the model's mind is real.

`make agents` installs them, at the versions of package.json and requirements.txt, and runs all cases. Those that are
not marked `agents` take seconds and run in `make test` too.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.launcher.logs import tail
from openai_bls.launcher.testing import RunningServer, copy_models, run_server
from tests.triton.agents import task
from tests.triton.agents.outside import started_outside
from tests.triton.agents.programs import AGENTS, AIDER, CLAUDE, CODEX, CONTEXT, MODEL, SDK, Agent, Run
from tests.triton.agents.task import Case, Render
from tests.triton.conftest import ROOT

pytestmark = pytest.mark.triton

FOLDER = Path(__file__).parent
PATIENCE_S = 150
# Of the environment: what programs find their libraries, their language and their terminal by.
INHERITED = ("PATH", "LANG", "LC_ALL", "TERM", "TMPDIR")

TOKENS = Case("token by token")
BURSTS = Case("in bursts", tokens_per_step=16)
SILENCE = Case("after a silence", tokens_per_step=16, silence_s=40)
NO_JSON = Case("with arguments that are no JSON", tokens_per_step=3, bad_arguments=True)
BROKEN = Case("against the grammar", tokens_per_step=2, breaks_grammar=True)
CASES = (TOKENS, BURSTS, SILENCE, NO_JSON, BROKEN)
QUICK = (CODEX, CLAUDE, SDK)
FORMATS: dict[str, Render] = {"hermes": task.hermes, "qwen3_coder": task.qwen3_coder}


class Setting(NamedTuple):
    """A server whose model plays the script of every agent and case."""

    server: RunningServer
    works: Path
    """Folder in which each agent and case has its own."""

    def work(self, agent: Agent, case: Case) -> Path:
        """Folder of the task's files."""
        return self.works / agent.name / case.name.replace(" ", "-")


@pytest.fixture(scope="module")
def setting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    """One server for each format of tool calls."""
    folder = tmp_path_factory.mktemp(request.param)
    repository, works, script = folder / "model_repository", folder / "works", folder / "script.json"
    copy_models(ROOT / "model_repository", repository)
    build(BuildOptions(str(_checkpoint(folder, request.param)), repository, engine="null"), print)
    script.write_text(json.dumps({"turns": _turns(works, FORMATS[request.param])}), encoding="utf-8")
    env = {"OPENAI_BLS_ENGINE_NULL_SCRIPT": str(script), "OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS": "1"}
    with run_server(repository, env) as running:
        yield Setting(running, works)


def _checkpoint(folder: Path, tool_format: str) -> Path:
    """The demo checkpoint, whose weights the null engine does not read, with a long context."""
    checkpoint = Path(shutil.copytree(ROOT / "demo" / "checkpoint", folder / MODEL))
    config = checkpoint / "config.json"
    config.write_text(json.dumps(json.loads(config.read_bytes()) | {"max_position_embeddings": CONTEXT}))
    template = FOLDER / f"{tool_format}.jinja"
    if template.exists():
        shutil.copy(template, checkpoint / "chat_template.jinja")
    return checkpoint


def _turns(works: Path, render: Render) -> list[dict[str, Any]]:
    setting = Setting(None, works)  # type: ignore[arg-type]
    found = [
        turn for agent in AGENTS for case in CASES for turn in agent.turns(case, setting.work(agent, case), render)
    ]
    return [*found, {"text": "A greeting"}]


Perform = Callable[[Agent, Case], None]


def _ended(words: list[str], env: dict[str, str], work: Path) -> tuple[int | None, str]:
    """Exit status of a program and what it printed; None, and all that it started is killed, without an end in time."""
    with subprocess.Popen(
        words,
        env=env,
        cwd=work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            told, status = process.communicate(timeout=PATIENCE_S)[0], process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            told, status = process.communicate()[0], None
        return status, told


@pytest.fixture
def perform(setting: Setting, tmp_path: Path) -> Perform:
    """Run an agent to its end, and look at what it has done."""

    def run(agent: Agent, case: Case) -> None:
        home, work = tmp_path / "home", setting.work(agent, case)
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        task.place(work)
        url = setting.server.openai_url.removesuffix("/v1")
        arguments, variables = agent.start(Run(url, home, work, task.prompt(agent.name, case)))
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        words = ["node", *arguments] if agent is SDK else [str(agent.path), *arguments]
        with started_outside() as outside:
            status, told = _ended(words, {**inherited, **outside.environment, **variables, "HOME": str(home)}, work)
        said, told = told, f"{told[-6000:]}\n--- the server ---\n{tail(setting.server.log_path, 12)}"
        assert status == 0, told
        assert (work / "greet.py").read_text(encoding="utf-8") == task.AFTER, told
        assert (work / "checked").exists(), told
        assert task.DONE.split(":")[0] in said, told
        assert outside.asked == []

    return run


def _cases() -> Iterator[Any]:
    """Each agent in each case with calls of JSON, and in one case with calls of XML."""
    for name in FORMATS:
        for agent in AGENTS:
            for case in CASES:
                if (case is BROKEN and agent is not CODEX) or (case is NO_JSON and agent is AIDER):
                    continue  # it has no such call
                if name == "hermes" or case is BROKEN or (case is BURSTS and agent is not AIDER):
                    yield pytest.param(name, agent, case, marks=agent.marks, id=f"{agent.name} {case.name}, {name}")


@pytest.mark.parametrize(
    ("setting", "agent"),
    [pytest.param("hermes", agent, marks=agent.marks, id=agent.name) for agent in QUICK],
    indirect=["setting"],
    scope="module",
)
def test_a_task_is_done(agent: Agent, perform: Perform) -> None:
    perform(agent, BURSTS)
    perform(agent, BURSTS)


@pytest.mark.agents
@pytest.mark.parametrize(("setting", "agent", "case"), [*_cases()], indirect=["setting"], scope="module")
def test_every_case(agent: Agent, case: Case, perform: Perform) -> None:
    perform(agent, case)
    if case is not SILENCE:
        perform(agent, case)
