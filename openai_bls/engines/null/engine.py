"""The null engine: no model, known tokens at a known pace, and failures on demand.

It measures the cost of the rest of the server and lets tests predict every token. It follows the contract of
`Engine` in full: in-flight batching, cancellation, stop tokens and stop words. Log-probabilities are made up: a token's
own is 0, and the tokens with the ids after it are the likeliest after it, each less so by 1.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from openai_bls.core.engine import EngineStats, StepListener
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, TokenDelta
from openai_bls.engines.adapters import require_room
from openai_bls.engines.capabilities import ENGINE_FAILED, refusal
from openai_bls.engines.command_queue import CommandQueue, emit, submit
from openai_bls.engines.grammars.errors import GrammarError
from openai_bls.engines.null.record import NullSettings
from openai_bls.engines.null.sequence import Output, Sequence, output_of

logger = logging.getLogger(__name__)

# Sampling changes nothing here, hence it is honoured. Fields that would have to change the sequence are not.
SUPPORTED = (
    *("temperature", "top_p", "top_k", "min_p", "seed"),
    *("stop_token_ids", "stop_words", "min_tokens", "logprobs", "prompt_logprobs"),
)
"""Fields that requests may use without adapters; with some, also `lora_name`, which shifts the tokens by one."""


def next_due(due: float, now: float, delay: float) -> float:
    """Time of the step after the one due at `due`, all in seconds.

    Counted from the last due time, not from `now`, so that late wake-ups do not add up; after a long stall from `now`,
    so that no burst makes up for it.
    """
    return due + delay if now - due < 10 * delay else now + delay


class NullEngine:
    """An `Engine` that emits one token for each running request in each step; a script may have more in a step."""

    def __init__(
        self,
        info: EngineInfo,
        settings: NullSettings,
        on_step: StepListener,
        play: Callable[[GenerationRequest], Output] | None = None,
    ) -> None:
        """Start the engine's thread.

        Args:
            info: capabilities and limits; it keeps the limits.
            settings: the tokens, the pace, the faults.
            on_step: the listener.
            play: the output of a request, which may raise `GrammarError`; None is that of the settings.
        """
        self._play = play or (lambda request: output_of(request, settings, info))
        self._has_delays = play is not None or settings.first_token_delay_ms > 0
        self._info = info
        self._settings = settings
        self._on_step = on_step
        self._wake = threading.Event()
        self._commands: CommandQueue[GenerationRequest | int] = CommandQueue(self._wake.set)
        self._active: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._live: dict[int, Sequence] = {}
        self._dead = False
        self._steps = 0
        self._generated = 0
        self._thread = threading.Thread(target=self._run, name="null-engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> EngineInfo:
        """Capabilities and limits of this engine."""
        return self._info

    def submit(self, request: GenerationRequest) -> None:
        """Take a request; an id that is already live is ignored, so that one id has one end."""
        submit(self._commands.put, self._on_step, request)

    def cancel(self, request_id: int) -> None:
        """Stop a request soon."""
        self._commands.put(request_id)

    def stats(self) -> EngineStats:
        """The present load."""
        running, waiting = len(self._active), len(self._waiting)
        return EngineStats(
            running=running,
            waiting=waiting,
            kv_cache_usage=min(1.0, running / self._info.max_batch_size),
            steps=self._steps,
            generated_tokens=self._generated,
            failed=self._dead,
            kv_blocks=self._info.max_batch_size,
            kv_block_size=self._info.max_model_len,
        )

    def load_lora(self, name: str, path: str) -> None:
        """Refuse: its adapters are the names that it was given."""
        require_room(self._info, name)

    def unload_lora(self, name: str) -> None:
        """Refuse, as above."""
        require_room(self._info, name)

    def reset_prefix_cache(self) -> None:
        """Reset nothing: there is no cache."""

    def close(self) -> None:
        """End every live request with "cancelled" and stop the thread."""
        self._commands.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _emit(self, deltas: list[TokenDelta]) -> None:
        emit(self._on_step, deltas)

    def _run(self) -> None:
        next_step = time.monotonic()
        while True:
            self._wake.clear()
            # Asked first: what came in before it was closed is in the queue.
            closed = self._commands.closed
            self._emit(self._take_commands())
            if closed:
                break
            now = time.monotonic()
            if not self._active:
                self._wake.wait()
                # No step was missed meanwhile: none is to be made up for.
                next_step = max(next_step, time.monotonic())
                continue
            due = next_step
            if self._has_delays:
                due = max(due, min(sequence.not_before for sequence in self._active))
            if now < due:
                self._wake.wait(due - now)
                continue
            delay = self._settings.step_delay_ms / 1000
            next_step = next_due(due, now, delay)
            # Sending what it brings lets other threads have the interpreter lock.
            self._step(now)
        self._emit([TokenDelta(request_id, [], "cancelled") for request_id in self._clear()])

    def _take_commands(self) -> list[TokenDelta]:
        """Apply what came in; returns the answers that need no step."""
        deltas: list[TokenDelta] = []
        for command in self._commands.drain():
            if isinstance(command, int):
                if self._forget(command):
                    deltas.append(TokenDelta(command, [], "cancelled"))
            elif command.request_id in self._live:
                logger.warning("request id %d is already live: ignored", command.request_id)
            elif self._dead:
                deltas.append(TokenDelta(command.request_id, [], "error", error=ENGINE_FAILED))
            elif problem := refusal(command, self._info):
                deltas.append(TokenDelta(command.request_id, [], "error", error=problem, invalid=True))
            else:
                self._take(command, deltas)
        self._fill()
        return deltas

    def _take(self, request: GenerationRequest, deltas: list[TokenDelta]) -> None:
        try:
            output = self._play(request)
        except GrammarError as error:
            deltas.append(TokenDelta(request.request_id, [], "error", error=str(error), invalid=True))
            return
        except Exception:  # of a grammar library
            logger.exception("a request failed")
            deltas.append(TokenDelta(request.request_id, [], "error", error=ENGINE_FAILED))
            return
        sequence = Sequence(request, output, self._info, self._settings.fail_on_token_id)
        self._live[request.request_id] = sequence
        self._waiting.append(sequence)

    def _fill(self) -> None:
        while self._waiting and len(self._active) < self._info.max_batch_size:
            sequence = self._waiting.popleft()
            sequence.queue_s = time.monotonic() - sequence.received_at
            self._active.append(sequence)

    def _forget(self, request_id: int) -> bool:
        sequence = self._live.pop(request_id, None)
        if sequence is None:
            return False
        if sequence in self._active:
            self._active.remove(sequence)
        else:
            self._waiting.remove(sequence)
        return True

    def _clear(self) -> list[int]:
        """Drop everything live; returns its ids."""
        ids = list(self._live)
        self._live.clear()
        self._active.clear()
        self._waiting.clear()
        return ids

    def _step(self, now: float) -> None:
        """One step: one token, or the end, for every active request that is due."""
        self._steps += 1
        if self._steps == self._settings.crash_at_step:
            self._crash()
            return
        deltas: list[TokenDelta] = []
        ended = False
        for s in self._active:
            position = s.position
            if not position and (s.fails or s.not_before > now):
                if s.not_before <= now:
                    deltas.append(TokenDelta(s.request_id, [], "error", error=ENGINE_FAILED))
                    s.position, ended = -1, True
                continue
            left, count = len(s.token_ids) - position, s.tokens_per_step
            if left > count or (left and s.stop_token_id is not None):
                tokens = s.token_ids[position : position + count]
                s.position = position + len(tokens)
                self._generated += len(tokens)
                queue_s = None if position else s.queue_s
                delta = TokenDelta(s.request_id, tokens, queue_s=queue_s)
            else:
                last = s.token_ids[position:]
                self._generated += len(last) + (s.stop_token_id is not None)
                queue_s = None if position else s.queue_s
                delta = TokenDelta(s.request_id, last, s.finish_reason, s.stop_token_id, queue_s=queue_s)
                s.position, ended = -1, True
            deltas.append(delta if s.asked is None else s.detailed(delta, position))
        if ended:
            for s in self._active:
                if s.position < 0:
                    del self._live[s.request_id]
            self._active = [s for s in self._active if s.position >= 0]
            self._fill()
        self._emit(deltas)

    def _crash(self) -> None:
        """Fail every live and every later request."""
        self._dead = True
        self._emit([TokenDelta(i, [], "error", error=ENGINE_FAILED) for i in self._clear()])
