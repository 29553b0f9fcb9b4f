"""The real vLLM with the demo, in a process of its own as Triton's model has it; started once for all tests here."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.support.asking import Answer, Asker
from openai_bls.core.engine import PrefixCacheError
from openai_bls.core.engine_types import GenerationRequest, TokenDelta
from openai_bls.core.manifest import LoraSettings, Manifest, write_manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.registry import create_engine
from openai_bls.transport.engine_process.engine import ProcessEngine
from openai_bls.transport.engine_process.loading import arguments
from openai_bls.transport.engine_process.source import StartedProcess
from openai_bls_vllm.record import VllmRecord
from tests.paths import DEMO
from tests.waiting import lines_until
from tests_vllm import warm
from tests_vllm.installed import cases
from tests_vllm.installed.processes.family import Family, parent
from tests_vllm.vllm_python import vllm_python

LIMIT_S = 600.0
"""Seconds for all answers of a test: a busy machine has room for little else."""
SILENCE_S = 600.0


KV_EVENTS_TOPIC = "kv@pod@demo"


class Served:
    """An engine and its listener."""

    def __init__(
        self,
        engine: ProcessEngine,
        asker: Asker,
        source: StartedProcess | None = None,
        settings: EngineSettings | None = None,
    ) -> None:
        self.engine = engine
        self.asker = asker
        self.settings = settings or EngineSettings()
        self._source = source

    def ask(self, requests: Sequence[GenerationRequest], at_once: int | None = None) -> list[Answer]:
        """The answers to requests, in their order; the engine's listener is the asker from now on."""
        self.engine._on_step = self.asker.on_step
        return self.asker.ask(requests, LIMIT_S, at_once)

    def streams(self, count: int) -> list[Answer]:
        """Answers of 1,900 tokens, the first of which have come."""
        begun = threading.Event()

        def listen(deltas: Sequence[TokenDelta]) -> None:
            self.asker.on_step(deltas)
            begun.set()

        self.engine._on_step = listen
        live = [self.asker.submit(cases.asked(cases.prompt(i), 1900)) for i in range(count)]
        assert begun.wait(LIMIT_S)
        return live

    def family(self) -> Family:
        """Processes of the engine."""
        assert self._source is not None
        assert self._source.pid
        return Family(parent(self._source.pid))

    def wait_attached(self) -> None:
        """Wait until the engine's process, which was lost, is back."""
        deadline, pause = time.monotonic() + LIMIT_S, threading.Event()
        while True:
            with contextlib.suppress(PrefixCacheError):
                return self.engine.reset_prefix_cache()
            assert time.monotonic() < deadline
            pause.wait(0.1)


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """vLLM with the demo, and room for two adapters."""
    folder = tmp_path_factory.mktemp("vllm") / "1"
    shutil.copytree(DEMO, folder / "checkpoint")
    manifest = Manifest(
        engine="vllm",
        model_name="demo",
        max_model_len=2048,
        max_batch_size=64,
        created=1,
        lora=LoraSettings(max_loras=2, max_lora_rank=8),
        record=VllmRecord(version="0.32.0").fields(),
    )
    write_manifest(folder, manifest)
    asker = Asker()
    settings = EngineSettings(
        kv_events_endpoint=f"ipc://{folder.parent}/events",
        kv_events_replay_endpoint=f"ipc://{folder.parent}/replay",
        kv_events_topic=KV_EVENTS_TOPIC,
    )
    source = StartedProcess(vllm_python(), arguments(folder, {}, settings), 0)
    engine = ProcessEngine(source, asker.on_step, SILENCE_S)
    asker.engine = engine
    yield Served(engine, asker, source, settings)
    engine.close()


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an engine: the demo, built for vLLM in two ranks."""
    repository = tmp_path_factory.mktemp("two_ranks") / "models"
    options = ("--engine", "vllm", "--model", str(DEMO), "--engine-python", vllm_python(), "--tp-size", "2")
    command = ["build", "--model-repository", str(repository), *options, "--no-self-test"]
    subprocess.run([sys.executable, "-m", "openai_bls", *command], check=True, timeout=LIMIT_S)
    return repository / "tensorrt_llm" / "1"


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """The embedded engine with the demo, in float32."""
    folder = tmp_path_factory.mktemp("embedded") / "1"
    shutil.copytree(DEMO, folder / "checkpoint")
    # For grammars.
    shutil.copytree(DEMO, folder / "tokenizer", ignore=shutil.ignore_patterns("*.safetensors"))
    write_manifest(
        folder, Manifest(engine="transformers", model_name="demo", max_model_len=2048, max_batch_size=64, created=1)
    )
    asker = Asker()
    asker.engine = create_engine(folder, asker.on_step, {"num_threads": "1"})
    yield asker
    asker.engine.close()


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Command that runs scripts as vLLM's interpreter does, where vLLM has been imported once for all of them."""
    folder = tmp_path_factory.mktemp("warm")
    environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    words = [vllm_python(), str(Path(warm.__file__)), str(folder / "socket")]
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        lines_until(process.stdout, "listening")
        yield warm.command(folder, folder / "socket")
        assert process.stdin is not None
        process.stdin.close()
