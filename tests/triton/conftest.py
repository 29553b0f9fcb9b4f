"""The real server, started once, with the demo checkpoint, and transformers' own answers."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.launcher.logs import tail
from openai_bls.launcher.testing import RunningServer, copy_models, run_server
from openai_bls.triton_models.repository.render_configs import configure
from tests.triton import reference as transformers_model
from tests.triton.conversations import QUESTION
from tests.triton.playground.browser import Browser, started_browser
from tests.triton.reference import Reference, load_reference

ROOT = Path(__file__).parents[2]
CHECKPOINT = transformers_model.CHECKPOINT


class Golden(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of demo/golden.jsonl: a conversation or a raw prompt, and the greedy answer."""

    answer: str
    tokens: int
    finish: str
    margin: float
    raw: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None

    @property
    def label(self) -> str:
        """For pytest's output."""
        return self.raw or str((self.messages or [{}])[-1].get("content"))


GOLDEN = [msgspec.json.decode(line, type=Golden) for line in (ROOT / "demo" / "golden.jsonl").read_bytes().splitlines()]
CHATS = [golden for golden in GOLDEN if golden.messages is not None and golden.tools is None]
TOOL_CHATS = [golden for golden in GOLDEN if golden.tools is not None]
SHORT_CHATS = [golden for golden in CHATS if golden.tokens <= 60][:12]
RAW = [golden for golden in GOLDEN if golden.raw is not None]
(ANSWERED,) = [golden for golden in CHATS if golden.messages == QUESTION]


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the model repository with the demo engine, whatever the user's own copy holds; not to be changed.

    Of the processes that run tests at the same time the first one makes it.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    target = folder / "repository" / "model_repository"
    with (folder / "repository.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            making = tmp_path_factory.mktemp("making") / "model_repository"
            copy_models(ROOT / "model_repository", making)
            build(BuildOptions(str(CHECKPOINT), making, "transformers"), print)
            target.parent.mkdir()
            making.rename(target)
    return target


def place_guard(repository: Path) -> Path:
    """Put the guard of examples/guard, as guard_model.py changes it, into a repository; its version folder."""
    shutil.copytree(ROOT / "examples" / "guard", repository / "guard")
    folder = repository / "guard" / "1"
    (folder / "model.py").rename(folder / "example.py")
    shutil.copy(Path(__file__).parent / "models" / "guard_model.py", folder / "model.py")
    return folder


def guard_questions(folder: Path, request_id: str) -> list[dict[str, Any]]:
    """What that guard was asked about a request."""
    lines = (folder / "questions.jsonl").read_bytes().splitlines()
    return [question for question in map(json.loads, lines) if question["request_id"] == request_id]


def with_two_instances(repository: Path, folder: Path) -> Path:
    """A copy of a repository, in a folder, in which `openai_bls` has two instances."""
    copy = folder / "model_repository"
    shutil.copytree(repository, copy)
    config = copy / "openai_bls" / "config.pbtxt"
    text = config.read_text(encoding="utf-8")
    assert "count: 1" in text
    config.write_text(text.replace("count: 1", "count: 2"), encoding="utf-8")
    return copy


@pytest.fixture
def two_instances(repository: Path, tmp_path: Path) -> Path:
    """See `with_two_instances`."""
    return with_two_instances(repository, tmp_path)


@pytest.fixture(scope="session")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The one server that most tests talk to; started as `tritonserver` starts by default."""
    batches = {"OPENAI_BLS_BATCHES_DIR": str(tmp_path_factory.mktemp("batches"))}
    with run_server(repository, batches, auto_complete=True) as running:
        yield running
        _assert_alive(running)


@pytest.fixture(scope="session")
def other_server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose engine answers once per request, that is told how its model marks a thought, and whose model
    repository is closed over HTTP, as `serve` closes it."""
    copy = tmp_path_factory.mktemp("other") / "model_repository"
    shutil.copytree(repository, copy, symlinks=True)
    configure(copy, ["tensorrt_llm.decoupled_mode=False", "openai_bls.reasoning_parser=think"])
    with run_server(copy, args=["--http-restricted-api=model-repository:control=key"]) as running:
        yield running
        _assert_alive(running)


def _assert_alive(running: RunningServer) -> None:
    """Or every test after its end has failed, and none of them knows why: its log says it."""
    code = running.process.poll()
    assert code is None, f"the server has ended by itself, with code {code}:\n{tail(running.log_path, 100)}"


@pytest.fixture(scope="session")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    """The official SDK, unmodified."""
    with openai.OpenAI(base_url=server.openai_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The machine's own browser, without a window.

    For one module: as long as it is there an event loop runs in this thread, and `asyncio.run` of other tests fails.
    """
    with started_browser() as started:
        yield started


@pytest.fixture(scope="session")
def reference() -> Reference:
    """transformers' own answers."""
    return load_reference()
