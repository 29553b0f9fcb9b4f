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
from collections.abc import Sequence

import msgspec

from openai_bls.core.engine import EngineStats, StepListener
from openai_bls.core.engine_types import EngineFinishReason, EngineInfo, GenerationRequest, Logprobs, TokenDelta
from openai_bls.core.manifest import NullSettings
from openai_bls.engines.adapters import require_room
from openai_bls.engines.capabilities import ALL_FIELDS, ENGINE_FAILED, refusal
from openai_bls.engines.command_queue import CommandQueue, emit, submit

logger = logging.getLogger(__name__)

_DEFAULT_TOKENS = 64  # ids that an engine without `token_ids` repeats

# Sampling changes nothing here, hence it is honoured. Fields that would have to change the sequence are not.
_NOT_SUPPORTED = {
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "bad_words",
    "grammar",
    "pooling",
    "lora_name",
    "prediction",
    "media",
}
SUPPORTED = tuple(field for field in ALL_FIELDS if field not in _NOT_SUPPORTED)
"""Fields that requests may use without adapters; with some, also `lora_name`, which shifts the tokens by one."""


def next_due(due: float, now: float, delay: float) -> float:
    """When the step after the one due at `due` is due, all in seconds.

    Counted from the last due time, not from `now`, so that late wake-ups do not add up; after a long stall from `now`,
    so that no burst makes up for it.
    """
    return due + delay if now - due < 10 * delay else now + delay


class _Sequence:
    """A request's whole future, worked out when it comes in, so that a step only has to walk along it."""

    __slots__ = (
        "asked",
        "fails",
        "finish_reason",
        "not_before",
        "position",
        "queue_s",
        "received_at",
        "request_id",
        "stop_token_id",
        "token_ids",
    )

    def __init__(self, request: GenerationRequest, settings: NullSettings, info: EngineInfo) -> None:
        self.request_id = request.request_id
        self.position = 0
        self.received_at = time.monotonic()
        self.queue_s = 0.0
        self.not_before = self.received_at + settings.first_token_delay_ms / 1000
        self.fails = settings.fail_on_token_id in request.prompt_token_ids
        self.finish_reason: EngineFinishReason = "length"
        self.stop_token_id: int | None = None
        wants_logprobs = request.logprobs is not None or request.prompt_logprobs is not None
        self.asked = (request, info.vocab_size) if wants_logprobs else None
        """Request and vocabulary size, where deltas carry log-probabilities."""
        shift = 0 if request.lora_name is None else 1
        if settings.echo:
            prompt = request.prompt_token_ids
            tokens = [*prompt[shift:], *prompt[:shift]][: request.max_tokens]
            if len(tokens) < request.max_tokens:
                self.finish_reason = "stop"
                self.stop_token_id = next(iter(info.eos_token_ids), None)
        else:
            cycle = list(settings.token_ids) or _default_cycle(info)
            tokens = (cycle * ((request.max_tokens + shift) // len(cycle) + 1))[shift:][: request.max_tokens]
        self.token_ids: list[int] = tokens
        if request.min_tokens:
            self._go_on_to(request.min_tokens, request, info)
        self._apply_stops(request)

    def _go_on_to(self, count: int, request: GenerationRequest, info: EngineInfo) -> None:
        """Put another token where one of the first `count` would be a stop token, or missing."""
        stops = set(request.stop_token_ids)
        other = next((i for i in range(info.vocab_size) if i not in stops), 0)
        tokens = self.token_ids
        tokens.extend([other] * (count - len(tokens)))
        tokens[:count] = [other if token_id in stops else token_id for token_id in tokens[:count]]
        if len(tokens) == request.max_tokens:
            self.finish_reason, self.stop_token_id = "length", None

    def _apply_stops(self, request: GenerationRequest) -> None:
        for token_id in request.stop_token_ids:
            if token_id in self.token_ids:
                self.token_ids = self.token_ids[: self.token_ids.index(token_id)]
                self.finish_reason, self.stop_token_id = "stop", token_id
        ends = [_end_of(self.token_ids, word, request.min_tokens) for word in request.stop_words]
        end = min((end for end in ends if end), default=0)
        if end:
            self.token_ids = self.token_ids[:end]
            self.finish_reason, self.stop_token_id = "stop", None

    def detailed(self, delta: TokenDelta, position: int) -> TokenDelta:
        """`delta`, whose first token is at `position` of the output, with the log-probabilities that were asked for."""
        if self.asked is None:
            return delta
        request, vocab_size = self.asked
        logprobs = prompt_logprobs = None
        if request.logprobs is not None and delta.token_ids:
            logprobs = _logprobs(delta.token_ids, request.logprobs, vocab_size)
        if request.prompt_logprobs is not None and not position:
            prompt_logprobs = _logprobs(request.prompt_token_ids[1:], request.prompt_logprobs, vocab_size)
        return msgspec.structs.replace(delta, logprobs=logprobs, prompt_logprobs=prompt_logprobs)


class NullEngine:
    """An `Engine` that emits one token for each running request in each step."""

    def __init__(self, info: EngineInfo, settings: NullSettings, on_step: StepListener) -> None:
        """Start the engine's thread.

        Args:
            info: capabilities and limits; it keeps the limits.
            settings: the tokens, the pace, the faults.
            on_step: the listener.
        """
        self._info = info
        self._settings = settings
        self._on_step = on_step
        self._wake = threading.Event()
        self._commands: CommandQueue[GenerationRequest | int] = CommandQueue(self._wake.set)
        self._active: list[_Sequence] = []
        self._waiting: deque[_Sequence] = deque()
        self._live: dict[int, _Sequence] = {}
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
        """Nothing is cached."""

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
            self._emit(self._take_commands())
            if self._commands.closed:
                break
            now = time.monotonic()
            if not self._active:
                self._wake.wait()
                # No step was missed meanwhile: none is to be made up for.
                next_step = max(next_step, time.monotonic())
                continue
            due = next_step
            if self._settings.first_token_delay_ms:
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
                sequence = _Sequence(command, self._settings, self._info)
                self._live[command.request_id] = sequence
                self._waiting.append(sequence)
        self._fill()
        return deltas

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
            left = len(s.token_ids) - position
            if left > 1 or (left == 1 and s.stop_token_id is not None):
                s.position = position + 1
                self._generated += 1
                queue_s = None if position else s.queue_s
                delta = TokenDelta(s.request_id, [s.token_ids[position]], queue_s=queue_s)
            else:
                last = s.token_ids[position:]
                self._generated += bool(last) or s.stop_token_id is not None
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


def _default_cycle(info: EngineInfo) -> list[int]:
    """The first tokens of the vocabulary that do not end a sequence."""
    cycle = [i for i in range(min(info.vocab_size, _DEFAULT_TOKENS)) if i not in info.eos_token_ids]
    return cycle or [0]


def _logprobs(token_ids: Sequence[int], count: int, vocab_size: int) -> Logprobs:
    count = min(count, vocab_size)
    return Logprobs(
        [0.0] * len(token_ids),
        [[(token_id + i) % vocab_size for i in range(count)] for token_id in token_ids],
        [[-float(i) for i in range(count)] for _ in token_ids],
    )


def _end_of(token_ids: list[int], word: tuple[int, ...], least: int) -> int:
    """Position just after the first occurrence of `word` that ends at `least` or later, or 0."""
    size, first = len(word), word[0]
    for start in range(max(0, least - size), len(token_ids) - size + 1):
        if token_ids[start] == first and tuple(token_ids[start : start + size]) == word:
            return start + size
    return 0
