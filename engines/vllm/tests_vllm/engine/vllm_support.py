"""Outputs in the form of vLLM's, a scripted client of it, and a manifest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from openai_bls.core.engine_types import EngineInfo, GenerationRequest
from openai_bls.core.manifest import Manifest
from openai_bls.engines.capabilities import ALL_FIELDS
from openai_bls_vllm.interface import Generation, Listeners, LoraAdapter
from openai_bls_vllm.record import VllmRecord

POOLING = ("pooling", "dimensions", "compressed_token_type_ids", "use_activation")

INFO = EngineInfo(
    engine="vllm",
    grammar_dialect="guidance",
    model_name="m",
    max_model_len=64,
    max_batch_size=4,
    vocab_size=100,
    eos_token_ids=(2,),
    supported=tuple(field for field in ALL_FIELDS if field not in ("prediction", *POOLING)),
    max_logprobs=20,
    grammar_backend="llguidance",
    max_loras=2,
    max_lora_rank=8,
)


class Prefill(msgspec.Struct):
    num_cached_tokens: int


class Event(msgspec.Struct):
    type: int
    timestamp: float


class CoreOutput(msgspec.Struct):
    """The attributes of `EngineCoreOutput` that are read."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: Any = None
    new_prompt_logprobs_tensors: Any = None
    finish_reason: str | None = None
    stop_reason: Any = None
    events: list[Event] | None = None
    prefill_stats: Prefill | None = None
    num_nans_in_logits: int = 0
    pooling_output: Any = None
    kv_transfer_params: dict[str, Any] | None = None
    spec_decode_metrics: Any = None


class Drafts(msgspec.Struct):
    num_draft_tokens: int
    num_accepted_tokens: int


class Stats(msgspec.Struct):
    """The attributes of `SchedulerStats` that are read."""

    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    spec_decoding_stats: Drafts | None = None


def manifest(**changes: Any) -> Manifest:
    """Of a vLLM engine."""
    record = VllmRecord(version="0.32.0")
    made = Manifest(
        engine="vllm", model_name="m", max_model_len=64, max_batch_size=4, created=1, record=record.fields()
    )
    return msgspec.structs.replace(made, **changes)


def asked(**changes: Any) -> GenerationRequest:
    """A request."""
    made = GenerationRequest(request_id=1, prompt_token_ids=[5, 6, 7], max_tokens=8)
    return msgspec.structs.replace(made, **changes)


class ScriptedClient:
    """A `Client` whose requests go on until the test says what comes; the test calls from its own thread."""

    name = "scripted"

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.changed = threading.Condition()
        self.started: list[Generation] = []
        self.aborted: list[str] = []
        self.loras: list[LoraAdapter] = []
        self.removed: list[int] = []
        self.shut_down = False
        self.idle = True
        """What `reset_prefix_cache` answers."""
        self.tasks: tuple[str, ...] = ("generate",)
        self.pending: asyncio.Event | None = None
        """Calls of `add_lora` wait for it, if there is one."""
        self._listeners: Listeners

    def start(self, listeners: Listeners) -> None:
        self._listeners = listeners

    def add(self, generations: Sequence[Generation]) -> None:
        with self.changed:
            self.started.extend(generations)
            self.changed.notify_all()

    def abort(self, request_ids: Sequence[str]) -> None:
        with self.changed:
            self.aborted.extend(request_ids)
            self.changed.notify_all()

    async def add_lora(self, adapter: LoraAdapter) -> bool:
        if self.pending is not None:
            await self.pending.wait()
        self.loras.append(adapter)
        return True

    async def remove_lora(self, number: int) -> bool:
        self.removed.append(number)
        return True

    async def supported_tasks(self) -> tuple[str, ...]:
        return self.tasks

    async def reset_prefix_cache(self) -> bool:
        return self.idle

    def shutdown(self) -> None:
        self.shut_down = True

    # For tests, from another thread.

    def wait_started(self, count: int) -> list[Generation]:
        """The first `count` requests."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.started) >= count, 60)
            return self.started[:count]

    def wait_aborted(self, count: int) -> list[str]:
        """The first `count` ids that were aborted."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.aborted) >= count, 60)
            return self.aborted[:count]

    def step(self, *outputs: CoreOutput, stats: Stats | None = None) -> None:
        """Give a step's outputs to the engine."""
        self.loop.call_soon_threadsafe(self._listeners.outputs, outputs, stats)

    def refuse(self, request_id: str, problem: str) -> None:
        """Refuse a request as vLLM would."""
        self.loop.call_soon_threadsafe(self._listeners.refused, request_id, problem)

    def die(self) -> None:
        """Let the engine core die."""
        self.loop.call_soon_threadsafe(self._listeners.death, RuntimeError("the engine core has died"))
