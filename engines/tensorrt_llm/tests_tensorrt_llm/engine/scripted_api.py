"""An `Api` whose outputs a test writes step by step: where it matters what comes when."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from openai_bls.core.checkpoint import CheckpointFacts
from openai_bls.core.engine_types import GenerationRequest, SamplingParams
from openai_bls.core.machine.nvidia_smi import InstalledGpu
from openai_bls.core.manifest import LoraSettings, Manifest, record, write_manifest
from openai_bls.core.media import MediaPrompt
from openai_bls_tensorrt_llm.engine import TrtLlmEngine
from openai_bls_tensorrt_llm.installed.api import Api
from openai_bls_tensorrt_llm.installed.interface import LlmOptions, LoraAdapter, Sampling, Version
from openai_bls_tensorrt_llm.installed.versions import sampling_fields
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord
from tests.engine_contract.support import Recorder

PATIENCE_S = 60.0
VOCAB_SIZE = 100
END = 90
FACTS = CheckpointFacts(
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    vocab_size=VOCAB_SIZE,
    max_position_embeddings=64,
    kv_bytes_per_token=0,
    eos_token_ids=(END, 91),
    pad_token_id=92,
    sampling_defaults=SamplingParams(),
)


class RequestError(RuntimeError):
    """Named as TensorRT-LLM's own."""


def manifest(**changes: Any) -> Manifest:
    """Of an engine of 64 tokens and 4 sequences. Args: changes: fields of `TensorRtLlmRecord`, and `lora`."""
    lora = changes.pop("lora", LoraSettings())
    fields: dict[str, Any] = {"version": "1.2.1", "max_input_len": 48} | changes
    return Manifest(
        engine="tensorrt_llm",
        model_name="scripted",
        max_model_len=64,
        max_batch_size=4,
        created=5,
        lora=lora,
        record=TensorRtLlmRecord(**fields).fields(),
    )


ADAPTER = LoraAdapter("tuned", Path("lora/tuned"), 1)
TUNED = LoraSettings({"tuned": "lora/tuned"}, max_loras=2, max_lora_rank=8, target_modules=("attn_q",))


@dataclass
class Completion:
    """What a `CompletionOutput` has."""

    index: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: Any = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class ScriptedOutput:
    """A running request; the test pushes what its steps bring."""

    def __init__(self, prompt_token_ids: list[int], sampling: Sampling, lora: LoraAdapter | None) -> None:
        self.prompt_token_ids = prompt_token_ids
        self.sampling = sampling
        self.lora = lora
        self.outputs = [Completion()]
        self.finished = False
        self.cached_tokens = 0
        self.aborted = threading.Event()
        self.abort_error: Exception | None = None
        self._newest_logprobs = False
        self.loop = asyncio.get_running_loop()
        self._steps: asyncio.Queue[tuple[list[int], str | None, int | None] | Exception] = asyncio.Queue()

    def put(self, *token_ids: int, finish: str | None = None, stop: int | None = None) -> None:
        """One step, from the loop's thread."""
        self._steps.put_nowait((list(token_ids), finish, stop))

    def push(self, *token_ids: int, finish: str | None = None, stop: int | None = None) -> None:
        """One step, from any thread."""
        self.loop.call_soon_threadsafe(lambda: self.put(*token_ids, finish=finish, stop=stop))

    def push_steps(self, *token_ids: int, newest_logprobs: bool = False) -> None:
        """A step for each token, all before the engine's thread looks.

        Args: newest_logprobs: show the log-probabilities of each step alone.
        """

        def put() -> None:
            self._newest_logprobs = newest_logprobs
            for token_id in token_ids:
                self.put(token_id)

        self.loop.call_soon_threadsafe(put)

    def fail(self, error: Exception) -> None:
        """The next step raises, from any thread."""
        self.loop.call_soon_threadsafe(self._steps.put_nowait, error)

    def __aiter__(self) -> AsyncIterator[ScriptedOutput]:
        return self

    async def __anext__(self) -> ScriptedOutput:
        if self.finished:
            raise StopAsyncIteration
        step = await self._steps.get()
        if isinstance(step, Exception):
            raise step
        token_ids, finish, stop = step
        completion = self.outputs[0]
        completion.token_ids.extend(token_ids)
        if self._newest_logprobs:
            completion.logprobs = [-float(token_id) for token_id in token_ids]
        completion.finish_reason, completion.stop_reason = finish, stop
        self.finished = finish is not None
        return self

    def abort(self) -> None:
        self.aborted.set()
        if self.abort_error is not None:
            raise self.abort_error


class ScriptedLlm:
    """A loaded model that ends when it is told to."""

    def __init__(self, options: LlmOptions) -> None:
        self.options = options
        self.shutdowns = 0
        self.shutting_down = threading.Event()
        self.hold = threading.Event()
        """Until it is set `shutdown` does not return."""
        self.hold.set()
        self.shutdown_error: Exception | None = None

    def shutdown(self) -> None:
        self.shutdowns += 1
        self.shutting_down.set()
        assert self.hold.wait(PATIENCE_S)
        if self.shutdown_error is not None:
            raise self.shutdown_error


class ScriptedApi(Api):
    """An `Api` without TensorRT-LLM; its attributes say how it is."""

    version = Version(1, 2, 1)
    version_text = "1.2.1"

    def __init__(self) -> None:
        self.outputs: queue.Queue[ScriptedOutput] = queue.Queue()
        self.llm: ScriptedLlm | None = None
        self.open_error: Exception | None = None
        self.generate_error: Exception | None = None
        self.fields = sampling_fields("tensorrt", self.version)
        self.health = True
        self.discarded = threading.Semaphore(0)
        """Released each time statistics were thrown away."""
        self.discard_error: Exception | None = None
        self.kv_events: list[Any] = []
        """KV events for the next reading."""
        self.media: list[MediaPrompt] = []
        """Images of the requests that had some."""
        self.image_tokens = 0
        """Tokens that the images of a prompt add to its token ids."""
        self.kinds: tuple[str, ...] = ("json_schema", "regex")
        self.installed = [InstalledGpu("NVIDIA H100 80GB HBM3", "9.0", 80 << 30)]

    def open(self, options: LlmOptions) -> ScriptedLlm:
        if self.open_error is not None:
            raise self.open_error
        self.llm = ScriptedLlm(options)
        return self.llm

    def supported(self, options: LlmOptions) -> tuple[str, ...]:
        return self.fields

    def grammar_kinds(self, options: LlmOptions) -> tuple[str, ...]:
        return self.kinds

    def generate(
        self, llm: Any, prompt_token_ids: list[int], sampling: Sampling, lora: LoraAdapter | None, media: Any = None
    ) -> Any:
        assert llm is self.llm
        if self.generate_error is not None:
            raise self.generate_error
        output = ScriptedOutput(prompt_token_ids, sampling, lora)
        if media is not None:
            self.media.append(media)
            output.prompt_token_ids = [*media.token_ids, *[0] * self.image_tokens]
        self.outputs.put(output)
        return output

    def healthy(self, llm: Any) -> bool:
        assert llm is self.llm
        return self.health

    def is_of_the_request(self, error: Exception) -> bool:
        return isinstance(error, (RequestError, AssertionError, LookupError, TypeError, ValueError))

    async def read_statistics(self, llm: Any) -> list[Any]:
        assert llm is self.llm
        self.discarded.release()
        if self.discard_error is not None:
            raise self.discard_error
        read, self.kv_events = self.kv_events, []
        return read

    def gpus(self) -> list[InstalledGpu]:
        return self.installed

    def next(self) -> ScriptedOutput:
        """The next request that was started."""
        return self.outputs.get(timeout=PATIENCE_S)

    def next_of(self, count: int) -> list[ScriptedOutput]:
        """The next `count` of them."""
        return [self.next() for _ in range(count)]


class Scripted(NamedTuple):
    """An engine over a scripted API, and what it has told."""

    engine: TrtLlmEngine
    api: ScriptedApi
    recorder: Recorder

    def begin(self, request_id: int, **more: Any) -> ScriptedOutput:
        """Submit a request that TensorRT-LLM starts."""
        self.engine.submit(request(request_id, **more))
        return self.api.next()

    def answer(self, request_id: int) -> None:
        """Have a request answered with one token."""
        self.begin(request_id).push(4, finish="length")
        self.recorder.wait_end(request_id)
        assert self.recorder.reason(request_id) == "length"


Starter = Callable[..., Scripted]


def request(request_id: int, max_tokens: int = 20, **more: Any) -> GenerationRequest:
    """A request for text after three tokens."""
    fields = {"prompt_token_ids": [1, 2, 3], "stop_token_ids": (END,)} | more
    return GenerationRequest(request_id=request_id, max_tokens=max_tokens, **fields)


def push_together(outputs: Iterable[ScriptedOutput], *token_ids: int, finish: str | None = None) -> None:
    """One step of TensorRT-LLM's that brings the same to several requests."""
    outputs = list(outputs)

    def put() -> None:
        for output in outputs:
            output.put(*token_ids, finish=finish)

    outputs[0].loop.call_soon_threadsafe(put)


def write_engine(version_dir: Path, built: Manifest) -> Manifest:
    """A folder as the builder leaves it, with a checkpoint and an engine that say little; returns its manifest."""
    checkpoint, engine = version_dir / "checkpoint", version_dir / "engine"
    for folder in (checkpoint, engine):
        folder.mkdir(parents=True)
    (checkpoint / "config.json").write_text(json.dumps({"vocab_size": VOCAB_SIZE, "eos_token_id": [END, 91]}))
    (engine / "config.json").write_text("{}")
    (engine / "rank0.engine").write_bytes(b"an engine")
    files = {"config.json": record(checkpoint / "config.json")}
    engine_files = {path.name: record(path) for path in sorted(engine.iterdir())}
    built = msgspec.structs.replace(built, files=files, engine_files=engine_files)
    write_manifest(version_dir, built)
    return built
