"""The ways in which sequences step: by continuous batching, in turn and overlapping, and with caches of their own.

Steps that overlap on a CPU: as on a GPU, a step is prepared before the results of the one before it are known, and run
by the same runner, if without graphs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import msgspec
import pytest
import torch
from transformers.generation.continuous_batching import continuous_api, input_outputs, model_runner, offloading_manager

from openai_bls_transformers.options import EngineOptions
from openai_bls_transformers.runners import preparation
from openai_bls_transformers.runners.runner_choice import RunnerChoice


class _Stream:
    """In order anyway."""

    def record_event(self, event: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def synchronize(self) -> None: ...


class _Event:
    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


@pytest.fixture(params=["in turn", "overlapping", "dynamic_cache"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "overlapping":
        overlap(monkeypatch)
    elif request.param == "dynamic_cache":
        original = preparation.choices

        def choices(model: Any, max_model_len: int, options: EngineOptions, **more: Any) -> list[RunnerChoice]:
            return original(model, max_model_len, msgspec.structs.replace(options, runner="dynamic_cache"), **more)

        monkeypatch.setattr(preparation, "choices", choices)


@pytest.fixture(params=["in turn", "overlapping"])
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Continuous batching alone, whose steps overlap or do not."""
    if request.param == "overlapping":
        overlap(monkeypatch)


IN_EVERY_WAY = pytest.mark.usefixtures("steps")
"""For tests whose outcome may depend on the runner and on whether steps overlap."""


def overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines that are started from now on overlap their steps; on a GPU they do so anyway."""
    if torch.cuda.is_available():
        return
    if not hasattr(input_outputs, "create_device_stream"):
        pytest.skip("older releases of transformers overlap steps on a GPU alone")
    monkeypatch.setattr(input_outputs.ContinuousBatchingAsyncIOs, "_supported_device_types", ("cpu",))
    monkeypatch.setattr(input_outputs, "create_device_stream", lambda device: _Stream())
    monkeypatch.setattr(torch, "Event", _Event)
    for module in (continuous_api, input_outputs, model_runner, offloading_manager):
        if hasattr(module, "stream_context"):
            monkeypatch.setattr(module, "stream_context", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    original = preparation.batching_config

    def batching_config(*args: Any) -> Any:
        return dataclasses.replace(original(*args), async_batching=True)

    monkeypatch.setattr(preparation, "batching_config", batching_config)
