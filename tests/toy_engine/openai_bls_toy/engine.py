"""The toy engine, which counts on from the last token of a prompt."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from openai_bls.core.checkpoint import read_checkpoint
from openai_bls.core.engine import EngineStats, StepListener
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, Logprobs, TokenDelta
from openai_bls.core.manifest import Manifest, checkpoint_dir
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.adapters import require_room
from openai_bls.engines.capabilities import refusal
from openai_bls.engines.command_queue import CommandQueue, emit, submit
from openai_bls.engines.output_end import OutputEnd

SUPPORTED = ("temperature", "top_p", "top_k", "seed", "stop_token_ids", "stop_words", "min_tokens", "logprobs")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Start-up options."""

    toy_step_ms: float = 0.5
    """Milliseconds from step to step."""


class _Sequence:
    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.end = OutputEnd(request)
        self.last = request.prompt_token_ids[-1]


class ToyEngine:
    """An `Engine` with one new token per sequence and step."""

    def __init__(self, info: EngineInfo, step_s: float, on_step: StepListener) -> None:
        self.info = info
        self._step_s = step_s
        self._on_step = on_step
        self._wake = threading.Event()
        self._commands: CommandQueue[GenerationRequest | int] = CommandQueue(self._wake.set)
        self._live: dict[int, _Sequence] = {}
        self._steps = self._generated = 0
        self._thread = threading.Thread(target=self._run, name="toy-engine", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest) -> None:
        """Take a request."""
        submit(self._commands.put, self._on_step, request)

    def cancel(self, request_id: int) -> None:
        """Stop a request soon."""
        self._commands.put(request_id)

    def stats(self) -> EngineStats:
        """The present load."""
        return EngineStats(len(self._live), 0, 0.0, self._steps, self._generated)

    def load_lora(self, name: str, path: str) -> None:
        """Refuse: there is no room for adapters."""
        require_room(self.info, name)

    def unload_lora(self, name: str) -> None:
        """Refuse, as above."""
        require_room(self.info, name)

    def reset_prefix_cache(self) -> None:
        """Nothing is cached."""

    def close(self) -> None:
        """End every live request with "cancelled" and stop the thread."""
        self._commands.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.wait(self._step_s if self._live else None)
            self._wake.clear()
            # Asked first: what came in before it was closed is in the queue.
            closed = self._commands.closed
            emit(self._on_step, [end for command in self._commands.drain() for end in self._take(command)])
            if closed:
                break
            emit(self._on_step, self._step())
        emit(self._on_step, [TokenDelta(request_id, [], "cancelled") for request_id in self._live])
        self._live.clear()

    def _take(self, command: GenerationRequest | int) -> list[TokenDelta]:
        if isinstance(command, int):
            return [TokenDelta(command, [], "cancelled")] if self._live.pop(command, None) else []
        if command.request_id in self._live:
            return []
        if problem := refusal(command, self.info):
            return [TokenDelta(command.request_id, [], "error", error=problem, invalid=True)]
        self._live[command.request_id] = _Sequence(command)
        return []

    def _step(self) -> list[TokenDelta]:
        running = list(self._live.items())[: self.info.max_batch_size]
        self._steps += bool(running)
        return [self._advance(request_id, sequence) for request_id, sequence in running]

    def _advance(self, request_id: int, sequence: _Sequence) -> TokenDelta:
        new = [self._next(sequence)] if sequence.request.max_tokens else []
        end = sequence.end.advance(new)
        if end is not None:
            del self._live[request_id]
            new = new[: end.delivered]
        self._generated += len(new)
        count, size = sequence.request.logprobs, self.info.vocab_size
        logprobs = None
        if count is not None and new:
            tokens = [[(token_id + i) % size for i in range(count)] for token_id in new]
            logprobs = Logprobs([0.0], tokens, [[-float(i) for i in range(count)]])
        reason, stop = (None, None) if end is None else (end.reason, end.stop_token_id)
        return TokenDelta(request_id, new, reason, stop, logprobs=logprobs)

    def _next(self, sequence: _Sequence) -> int:
        sequence.last = (sequence.last + 1) % self.info.vocab_size
        while sequence.end.count < sequence.request.min_tokens and sequence.end.is_stop(sequence.last):
            sequence.last = (sequence.last + 1) % self.info.vocab_size
        return sequence.last


def load(
    version_dir: Path, manifest: Manifest, settings: EngineSettings, on_step: StepListener, options: Options
) -> ToyEngine:
    """The engine in `version_dir`, which has the vocabulary of its checkpoint."""
    facts = read_checkpoint(checkpoint_dir(version_dir, manifest))
    info = EngineInfo(
        engine="toy",
        model_name=manifest.model_name,
        max_model_len=manifest.max_model_len,
        max_batch_size=manifest.max_batch_size,
        vocab_size=facts.vocab_size,
        eos_token_ids=facts.eos_token_ids,
        supported=SUPPORTED,
        version="toy 1",
        created=manifest.created,
        max_logprobs=20,
    )
    return ToyEngine(info, options.toy_step_ms / 1000, on_step)
