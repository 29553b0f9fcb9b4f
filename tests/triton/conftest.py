"""The real server, started once, with the demo checkpoint; and transformers' own answers to compare with."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from openai_bls.launcher.testing import RunningServer, copy_models, run_server

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "demo" / "checkpoint"


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
RAW = [golden for golden in GOLDEN if golden.raw is not None]


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the model repository with the demo engine, whatever the user's own copy holds."""
    target = tmp_path_factory.mktemp("repository") / "model_repository"
    copy_models(ROOT / "model_repository", target)
    subprocess.run(
        [sys.executable, ROOT / "build" / "engine.py", "--model", CHECKPOINT, "--model-repository", target],
        check=True,
    )
    return target


@pytest.fixture
def two_instances(repository: Path, tmp_path: Path) -> Path:
    """A copy of the repository in which `openai_bls` has two instances."""
    copy = tmp_path / "model_repository"
    shutil.copytree(repository, copy)
    config = copy / "openai_bls" / "config.pbtxt"
    text = config.read_text(encoding="utf-8")
    assert "count: 1" in text
    config.write_text(text.replace("count: 1", "count: 2"), encoding="utf-8")
    return copy


@pytest.fixture(scope="session")
def server(repository: Path) -> Iterator[RunningServer]:
    """The one server that most tests talk to."""
    with run_server(repository) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    """The official SDK, unmodified."""
    with openai.OpenAI(base_url=server.openai_url, api_key="none", max_retries=0) as client:
        yield client


class Reference:
    """What transformers itself answers: greedy `generate` in float32, then `decode`."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(CHECKPOINT)
        self._model: Any = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)

    def prompt_token_ids(self, golden: Golden) -> list[int]:
        """The prompt as transformers renders and tokenizes it."""
        if golden.raw is not None:
            ids: list[int] = self.tokenizer(golden.raw)["input_ids"]
            return ids
        text = self.tokenizer.apply_chat_template(
            golden.messages, tools=golden.tools, tokenize=False, add_generation_prompt=True
        )
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    @functools.cache  # noqa: B019  # lives as long as the session
    def _generate(self, prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
        import torch

        with torch.inference_mode():
            output = self._model.generate(
                torch.tensor([prompt]),
                do_sample=False,
                max_new_tokens=max_tokens,
                temperature=None,
                top_p=None,
                top_k=None,
            )
        return tuple(output[0, len(prompt) :].tolist())

    def token_ids(self, golden: Golden, max_tokens: int = 1200) -> tuple[int, ...]:
        """The new tokens, an end token included."""
        return self._generate(tuple(self.prompt_token_ids(golden)), max_tokens)

    def text(self, golden: Golden, max_tokens: int = 1200) -> str:
        """The answer, special tokens left out."""
        text: str = self.tokenizer.decode(self.token_ids(golden, max_tokens), skip_special_tokens=True)
        return text


@pytest.fixture(scope="session")
def reference() -> Reference:
    """transformers' own answers."""
    return Reference()


def by_label(goldens: list[Golden]) -> pytest.MarkDecorator:
    """Parametrize a test over golden prompts."""
    return pytest.mark.parametrize("golden", goldens, ids=[json.dumps(g.label)[:40] for g in goldens])
