"""What tests tell the fake through the environment; tests_tensorrt_llm/fakes/README.md lists it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import NoReturn

DEFAULT_VERSION = "1.2.1"


def version() -> str:
    """Of the TensorRT-LLM that is played."""
    return os.environ.get("FAKE_TENSORRT_LLM_VERSION", DEFAULT_VERSION)


def release() -> tuple[int, int]:
    """Major and minor number of `version`."""
    major, minor = version().split(".")[:2]
    return int(major), int(minor)


def has_tensorrt() -> bool:
    """The TensorRT flow was taken out in 1.3.0rc21."""
    if release() < (1, 3):
        return True
    return version().startswith("1.3.0rc") and int("".join(filter(str.isdigit, version()[7:9])) or 0) < 21


def scripted_tokens() -> list[int] | None:
    """What every request is answered with, in the place of a model."""
    text = os.environ.get("FAKE_TENSORRT_LLM_TOKENS")
    if text is None:
        return None
    return [int(part) for part in text.replace("[", " ").replace("]", " ").replace(",", " ").split()]


def step_tokens() -> int:
    """Tokens that one response of a stream brings."""
    return int(os.environ.get("FAKE_TENSORRT_LLM_STEP_TOKENS", "1"))


def step_delay_s() -> float:
    """Least time from one step to the next."""
    return float(os.environ.get("FAKE_TENSORRT_LLM_STEP_DELAY_MS", "0")) / 1000


def late_final() -> bool:
    """Whether a response without tokens ends a request, after the one with its last token."""
    return os.environ.get("FAKE_TENSORRT_LLM_LATE_FINAL", "") not in ("", "0")


def record_call(name: str, values: dict[str, object]) -> None:
    """Append a call to the file FAKE_TENSORRT_LLM_CALLS, one line of JSON each, for tests in other processes."""
    path = os.environ.get("FAKE_TENSORRT_LLM_CALLS")
    if path:
        with Path(path).open("a") as file:
            file.write(json.dumps({"call": name, **values}, default=str) + "\n")


def failure(stage: str) -> str | None:
    """What is to go wrong at a stage (`build`, `save`, `load`, `serve`), from `FAKE_TENSORRT_LLM_FAIL=stage:what` or
    from the file that FAKE_TENSORRT_LLM_FAIL_FILE names, which may come and go while a process runs."""
    text = os.environ.get("FAKE_TENSORRT_LLM_FAIL", "")
    path = os.environ.get("FAKE_TENSORRT_LLM_FAIL_FILE")
    if path and Path(path).is_file():
        text = Path(path).read_text().strip()
    found, _, what = text.partition(":")
    return what if found == stage else None


def crash(what: str) -> NoReturn:
    """End this process at once, as TensorRT-LLM's C++ parts do."""
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(134)
