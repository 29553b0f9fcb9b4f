"""The runner for every causal language model: steps of its own forward pass, with a cache for each sequence.

Nothing is asked of a model but what `generate` asks. So it is right where continuous batching is not, and slower: a
prompt has a pass of its own, no prefix is shared, and sequences whose caches cannot lie in one batch take their steps
one after another.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from openai_bls.core.engine import EngineStats
from openai_bls.engines.kv_events.events import Event
from openai_bls_transformers.model.image_inputs import PromptImages
from openai_bls_transformers.runners.runner import BatchingConfig, BeforeStep, OnOutputs, Sampling
from openai_bls_transformers.runners.sampler import Sampler, likeliest
from openai_bls_transformers.runners.sequence_batch import SequenceBatch, SequenceState, StepModel

logger = logging.getLogger(__name__)

_HEADROOM_TOKENS = 64
"""Free tokens of the cache per sequence under which none joins those that run."""


class DynamicCacheRunner:
    """A `runner.Runner` over caches that grow with their sequences.

    When they outgrow the budget, the youngest sequence gives its cache up and later takes its tokens in again.
    """

    def __init__(self, model: Any, config: BatchingConfig, before_step: BeforeStep, on_outputs: OnOutputs) -> None:
        """Args are those of `ContinuousBatcher`; nothing is allocated yet."""
        self._model = StepModel(model)
        self._device: torch.device = model.device
        self._config = config
        self._before_step = before_step
        self._on_outputs = on_outputs
        self._sampler = Sampler(on_gpu=self._device.type != "cpu")
        self._waiting: deque[SequenceState] = deque()
        self._prompt: SequenceBatch | None = None
        """The sequence whose prompt is being taken in."""
        self._batches: list[SequenceBatch] = []
        self._live: dict[str, SequenceState] = {}
        self._woken = threading.Event()
        self._shares = config.shared_steps
        self._stopping = False
        self._steps = 0

    @property
    def capacity(self) -> int:
        """Tokens that the caches may hold together."""
        return self._config.max_tokens_in_kv_cache

    def stats(self) -> EngineStats:
        """The load and the number of forward passes; a block of the cache is a token, and nothing is drafted."""
        live, waiting = sum(not state.done for state in list(self._live.values())), len(self._waiting)
        return EngineStats(
            running=max(0, live - waiting),
            waiting=waiting,
            kv_cache_usage=min(1.0, self._used() / self.capacity),
            steps=self._steps,
            generated_tokens=0,
            kv_blocks=self.capacity,
            kv_block_size=1,
        )

    def add(
        self,
        key: str,
        prompt_token_ids: list[int],
        max_tokens: int,
        stop_token_ids: Sequence[int],
        sampling: Sampling,
        images: PromptImages | None = None,
    ) -> None:
        """Queue a sequence under a key never used before; its images are read with its prompt, in one pass."""
        media = None if images is None else images.arguments
        state = SequenceState(
            key, list(prompt_token_ids), max_tokens, frozenset(stop_token_ids), {"sampling": sampling}, media=media
        )
        self._live[key] = state
        self._waiting.append(state)

    def cancel(self, key: str) -> None:
        """Drop a sequence before the next step."""
        if key in self._live:
            self._live[key].done = True

    def reset_prefix_cache(self) -> bool:
        """No prompts are kept."""
        return True

    def take_kv_events(self, adapter_name: Callable[[int], str]) -> list[Event]:
        """There are none."""
        return []

    def wake(self) -> None:
        """End an idle wait."""
        self._woken.set()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def run(self) -> BaseException | None:
        """Generate until `stop`; returns the error that ended it earlier, if one did."""
        try:
            while not self._stopping:
                self._woken.clear()
                self._before_step()
                if not self._stopping and not self._step():
                    self._woken.wait()
        except Exception as error:
            self._fail(list(self._live.values()), error)
            return error
        return None

    def stop(self) -> None:
        """Make `run` return after the current step."""
        self._stopping = True
        self._woken.set()

    def free(self) -> None:
        """Let go of the caches and the model; only after `run` has returned."""
        self._batches, self._prompt = [], None
        del self._model

    def _used(self) -> int:
        """Tokens in the caches of live sequences, padding included."""
        return sum(batch.tokens for batch in self._parts() if not all(state.done for state in batch.states))

    def _parts(self) -> list[SequenceBatch]:
        prompt = self._prompt
        return [*self._batches, *([] if prompt is None else [prompt])]

    def _step(self) -> bool:
        """Every running sequence's next token and a piece of a prompt; False if there is nothing to do."""
        self._drop_done()
        self._make_room()
        self._join()
        ready: list[tuple[SequenceBatch, torch.Tensor]] = []
        for batch in list(self._batches):
            with self._guarded(batch.states):
                self._steps += 1
                ready.append((batch, batch.step()))
        ready += self._read_prompts()
        if ready:
            self._sample(ready)
        return bool(self._live)

    def _drop_done(self) -> None:
        self._live = {key: state for key, state in self._live.items() if not state.done}
        self._waiting = deque(state for state in self._waiting if not state.done)
        for batch in self._parts():
            with self._guarded(batch.states):
                batch.drop_done()
        self._batches = [batch for batch in self._batches if batch.states and not all(s.done for s in batch.states)]
        if self._prompt is not None and not self._prompt.states:
            self._prompt = None

    def _make_room(self) -> None:
        """Preempt the youngest sequences until the next step's tokens fit."""
        while len(states := [state for batch in self._batches for state in batch.states]) > 1:
            if self._used() + len(states) <= self.capacity:
                return
            order = list(self._live)
            self._preempt(max(states, key=lambda state: order.index(state.request_id)))

    def _preempt(self, state: SequenceState) -> None:
        """Let a sequence begin again, with its output as a part of the prompt, when there is room."""
        logger.info("the KV cache is full: sequence %s starts again later", state.request_id)
        state.done = True
        self._drop_done()
        state.done = False
        self._live[state.request_id] = state
        self._waiting.appendleft(state)

    def _read_prompts(self) -> Iterator[tuple[SequenceBatch, torch.Tensor]]:
        """Take prompts in, up to the tokens of a step or the end of one; yields those whose sequence can begin."""
        budget = self._config.max_num_tokens
        while budget > 0 and self._next_prompt():
            batch = self._prompt
            assert batch is not None
            unread, logits = batch.unread, None
            with self._guarded(batch.states):
                self._steps += 1
                logits = batch.read(budget)
            budget -= unread - batch.unread
            if logits is not None:
                self._batches.append(batch)
                yield batch, logits
            if logits is not None or batch.states[0].done:
                self._prompt = None

    def _next_prompt(self) -> bool:
        """True if there is a prompt to take in; that of a waiting sequence only if there is room for it."""
        if self._prompt is not None:
            return True
        running = sum(len(batch.states) for batch in self._batches)
        if not self._waiting or running >= self._config.max_batch_size:
            return False
        state = self._waiting[0]
        needed = state.position_offset + (running + 1) * _HEADROOM_TOKENS
        if running and self._used() + needed > self.capacity:
            return False
        self._waiting.popleft()
        if state.scheduled_at is None:
            state.scheduled_at = time.monotonic()
        with self._guarded([state]):
            self._prompt = SequenceBatch.of(self._model, state)
        return self._prompt is not None

    def _sample(self, ready: list[tuple[SequenceBatch, torch.Tensor]]) -> None:
        """Choose and deliver the next token of every sequence."""
        states = [state for batch, _ in ready for state in batch.states]
        with self._guarded(states):
            logits = torch.cat([rows for _, rows in ready])
            last = torch.tensor([(s.generated_tokens or s.initial_tokens)[-1] for s in states], device=self._device)
            arguments = torch.zeros(self._sampler.tensors_required, len(states), dtype=torch.int32, device=self._device)
            arguments = self._sampler.prepare_tensor_args(states, arguments)
            chosen = self._sampler.pick(last, logits, arguments, likeliest(logits))
            for (batch, _), rows in zip(ready, chosen.split([len(batch.states) for batch, _ in ready]), strict=True):
                batch.append(rows)
            for state, token_id in zip(states, chosen.tolist(), strict=True):
                state.take(token_id)
        delivered = [state for state in states if state.error is None]
        if delivered:
            self._on_outputs(delivered)

    def _join(self) -> None:
        """Put batches together that can be, so that their sequences share a pass."""
        joined: list[SequenceBatch] = []
        for batch in self._batches:
            at = next(
                (i for i, other in enumerate(joined) if self._shares and self._model.can_join(other, batch)), None
            )
            if at is None:
                joined.append(batch)
                continue
            try:
                joined[at] = joined[at].join(batch)
            except torch.OutOfMemoryError:  # for a moment both caches and their copies are there
                logger.warning("no memory to put caches together: sequences step alone from now on")
                self._shares = False
                joined.append(batch)
        self._batches = joined

    def _fail(self, states: Iterable[SequenceState], error: Exception) -> None:
        failed = [state for state in states if not state.done]
        for state in failed:
            state.error, state.done = f"{type(error).__name__}: {error}", True
        if failed:
            self._on_outputs(failed)

    @contextlib.contextmanager
    def _guarded(self, states: Sequence[SequenceState]) -> Iterator[None]:
        """Let an error end the sequences that it happened to, unless the device does not answer any more."""
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            logger.exception("a step failed for %d sequences", len(states))
            failure = error.with_traceback(None)  # which holds the tensors of the step
        if failure is not None:
            if self._device.type == "cuda":
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
            self._fail(states, failure)
