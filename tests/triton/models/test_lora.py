"""Adapters on a real server: built in, loaded over /v1 and Triton's port, watched; equal to peft's answers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.options.lora import LoraOptions
from openai_bls.launcher.testing import RunningServer, run_server
from tests.triton.reference import CHECKPOINT
from tests.triton.reference import Reference as Demo
from tests_transformers.engine.adapters import Reference, make_adapter

pytestmark = pytest.mark.triton

TIMEOUT = 60.0
PROMPT = "Machine learning is"
TOKENS = 12


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Below the directory that the server takes adapters from."""
    root = tmp_path_factory.mktemp("adapters")
    return {
        "poet": make_adapter(
            CHECKPOINT, root / "poet", r=4, std=0.12, lora_alpha=16, target_modules=["q_proj", "down_proj"]
        ),
        "clerk": make_adapter(CHECKPOINT, root / "clerk", 2, 0.1, r=8, lora_alpha=16, target_modules="all-linear"),
    }


@pytest.fixture(scope="module")
def expected(adapters: dict[str, Path], reference: Demo) -> dict[str | None, str]:
    """Greedy completions of transformers and peft."""
    answers = Reference(CHECKPOINT, {name: adapters[name] for name in ("poet", "clerk")})
    prompt = reference.tokenizer(PROMPT)["input_ids"]
    found = {name: reference.decode(answers.greedy(name, prompt, TOKENS)[0]) for name in answers.models}
    assert len(set(found.values())) == 3
    return found


@pytest.fixture(scope="module")
def server(repository: Path, adapters: dict[str, Path], tmp_path_factory: Any) -> Iterator[RunningServer]:
    copy = tmp_path_factory.mktemp("lora") / "model_repository"
    shutil.copytree(repository, copy)
    options = LoraOptions({"built": adapters["poet"]}, max_loras=2, max_lora_rank=8)
    build(BuildOptions(str(CHECKPOINT), copy, "transformers", lora=options, self_test=False), print)
    config = copy / "openai_bls" / "config.pbtxt"
    config.write_text(config.read_text().replace("count: 1", "count: 2"))
    root = adapters["poet"].parent
    env = {"OPENAI_BLS_LORA_ROOT": str(root), "OPENAI_BLS_LORA_WATCH_DIR": str(root / "watched")}
    with run_server(copy, env=env) as running:
        yield running


def post(server: RunningServer, path: str, body: dict[str, Any]) -> httpx.Response:
    """Over a connection of its own: either instance of openai_bls answers."""
    return httpx.post(f"{server.openai_url}/{path}", json=body, timeout=TIMEOUT)


def completion(server: RunningServer, model: str) -> httpx.Response:
    body = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": TOKENS}
    return post(server, "completions", body)


def text(server: RunningServer, model: str) -> str:
    answer: str = completion(server, model).json()["choices"][0]["text"]
    return answer


def parents(server: RunningServer) -> dict[str, str | None]:
    cards = httpx.get(f"{server.openai_url}/models", timeout=TIMEOUT).json()["data"]
    return {card["id"]: card["parent"] for card in cards}


def until(condition: Callable[[], bool]) -> None:
    """True ten times in a row, for both instances of openai_bls hear of it."""
    deadline = time.monotonic() + TIMEOUT
    while not all(condition() for _ in range(10)):
        assert time.monotonic() < deadline


def test_loaded_and_unloaded_over_v1(server: RunningServer, expected: dict[str | None, str]) -> None:
    assert text(server, "demo") == expected[None]
    assert text(server, "built") == expected["poet"]
    assert completion(server, "clerk").status_code == 404
    answer = post(server, "load_lora_adapter", {"lora_name": "clerk", "lora_path": "clerk"})
    assert (answer.status_code, answer.json()["message"]) == (200, "Success: LoRA adapter 'clerk' added successfully.")
    until(lambda: parents(server).get("clerk") == "demo")
    assert parents(server) == {"demo": None, "openai_bls": None, "built": "demo", "clerk": "demo"}
    assert text(server, "clerk") == expected["clerk"]
    assert text(server, "demo") == expected[None]
    full = post(server, "load_lora_adapter", {"lora_name": "more", "lora_path": "poet"})
    assert full.status_code == 400
    assert "2 adapters at a time (--max-loras)" in full.json()["error"]["message"]
    assert post(server, "unload_lora_adapter", {"lora_name": "clerk"}).status_code == 200
    until(lambda: "clerk" not in parents(server))
    assert completion(server, "clerk").status_code == 404
    assert post(server, "unload_lora_adapter", {"lora_name": "clerk"}).status_code == 404


def test_a_watched_directory(server: RunningServer, adapters: dict[str, Path], expected: dict[str | None, str]) -> None:
    folder = adapters["clerk"].parent / "watched" / "found"
    shutil.copytree(adapters["clerk"], folder)
    until(lambda: "found" in parents(server))
    assert text(server, "found") == expected["clerk"]
    shutil.rmtree(folder)
    until(lambda: "found" not in parents(server))
