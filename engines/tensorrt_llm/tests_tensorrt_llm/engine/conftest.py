"""Engines over a scripted API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openai_bls.engines.engine_info import engine_info
from openai_bls_tensorrt_llm.engine import TrtLlmEngine
from openai_bls_tensorrt_llm.installed.interface import LlmOptions
from openai_bls_tensorrt_llm.loaded_adapters import LoadedAdapters
from tests.engine_contract.support import Recorder
from tests_tensorrt_llm.engine.scripted_api import ADAPTER, FACTS, TUNED, Scripted, ScriptedApi, Starter, manifest


@pytest.fixture
def scripted() -> Iterator[Starter]:
    """Start an engine over a scripted API; closed and checked at the end."""
    started: list[Scripted] = []

    def start_one(**more: Any) -> Scripted:
        api, recorder = ScriptedApi(), Recorder()
        built = manifest(gather_logits=True, lora=TUNED)
        options = LlmOptions(
            model=Path("engine"),
            flow="tensorrt",
            max_batch_size=4,
            max_model_len=64,
            gather_generation_logits=True,
            guided_decoding_backend="xgrammar",
        )
        info = engine_info(
            built,
            FACTS,
            version="1.2.1",
            supported={*api.supported(options), "stop_words"},
            max_logprobs=5,
            grammar_backend="xgrammar",
            grammar_kinds=api.grammar_kinds(options),
        )
        adapters = LoadedAdapters([ADAPTER], info, built.lora, Path(), api.version)
        engine = TrtLlmEngine(api, api.open(options), built, adapters, recorder, **more)
        started.append(Scripted(engine, api, recorder))
        return started[-1]

    yield start_one
    for engine, api, recorder in started:
        assert api.llm is not None
        api.llm.hold.set()
        engine.close()
        assert api.llm.shutdowns == 1
        assert recorder.breaches == []
