"""The fake TensorRT-LLM in tests: in this process, or in others through the environment."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from openai_bls_tensorrt_llm.installed import api

FAKES = Path(__file__).resolve().parents[1] / "fakes"
PACKAGE = FAKES / "trtllm_package"
VERSIONS = ("0.20.0", "1.0.0", "1.1.0", "1.2.1")
PATIENCE_S = 120
_T = TypeVar("_T")
_OURS = ("FAKE_TENSORRT_LLM_", "FAKE_GPUS", "CUDA_VISIBLE_DEVICES")


def environment(version: str = "1.2.1", **values: str) -> dict[str, str]:
    """Variables for another process that finds the fake, and an nvidia-smi.

    Args:
        version: of TensorRT-LLM.
        values: further variables of the fake, without FAKE_TENSORRT_LLM_ and in lower case (`fail="build:disk"`), or
            with their whole names.
    """
    given = {key if key.isupper() else f"FAKE_TENSORRT_LLM_{key.upper()}": value for key, value in values.items()}
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_OURS)}
    paths = [str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": os.pathsep.join([str(FAKES / "bin"), os.environ.get("PATH", "")]),
        "FAKE_TENSORRT_LLM_VERSION": version,
        **given,
    }


@contextlib.contextmanager
def in_process(version: str = "1.2.1", **values: str) -> Iterator[api.Api]:
    """The fake as this process's `tensorrt_llm`, imported anew; gives `api.installed()` over it."""
    with patched(environment(version, **values)):
        yield api.installed()


@contextlib.contextmanager
def patched(variables: Mapping[str, str]) -> Iterator[None]:
    """This process with an environment and the fake's folder on its path, and without it again afterwards."""
    with mock.patch.dict(os.environ, variables, clear=True), mock.patch.object(sys, "path", [str(PACKAGE), *sys.path]):
        _forget()
        try:
            yield
        finally:
            _forget()


def on_loop(work: Coroutine[object, object, _T]) -> _T:
    """What a coroutine gives.

    It runs on an event loop that goes on after it, for a response may be taken in before its loop is told of it, and
    telling one that has stopped ends the executor with an error.
    """
    return asyncio.run_coroutine_threadsafe(work, _loop()).result(PATIENCE_S)


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="tests-event-loop", daemon=True).start()
    return loop


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


def small_checkpoint(folder: Path, **config: Any) -> Path:
    """`folder` with the config.json of a small model, and without weights."""
    fields = {"architectures": ["Qwen2ForCausalLM"], "vocab_size": 20, "max_position_embeddings": 64} | config
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    return folder
