"""The embedded engine: a transformers model and its runner behind the `Engine` interface.

Life of a request: `submit` checks it on the caller's thread and puts it into the command queue; the engine's thread
takes it out between two steps and hands it to the runner; after each step the thread turns all outputs into deltas and
calls the listener once. Only that thread calls the listener and knows which requests are live, so each gets exactly one
end.

Before that, a request with a grammar or with images waits for their preparation on other threads, and one that wants
log-probabilities or an embedding of its prompt has a forward pass between two steps (`prefill_queue`).
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import msgspec
import torch

from openai_bls.core.checkpoint import read_checkpoint
from openai_bls.core.engine import EngineStats, StepListener
from openai_bls.core.engine_types import EngineFinishReason, EngineInfo, GenerationRequest, TokenDelta
from openai_bls.core.manifest import Manifest, checkpoint_dir, first_line
from openai_bls.engines.adapters import require_loaded, require_room
from openai_bls.engines.capabilities import ENGINE_FAILED, refusal
from openai_bls.engines.command_queue import CommandQueue, await_reset, command_of, emit, submit
from openai_bls.engines.grammars import llguidance_backend
from openai_bls.engines.grammars.compiler import CompiledGrammar, GrammarCompiler
from openai_bls.engines.images.processor import VisionProcessor
from openai_bls.engines.kv_events import publisher
from openai_bls.engines.kv_events.publisher import KvEventPublisher, KvEventsConfig
from openai_bls_transformers.engine.info import engine_info
from openai_bls_transformers.engine.live_requests import LiveRequests, UnloadedAdapterError
from openai_bls_transformers.engine.prefill_queue import PrefillQueue, Prepared
from openai_bls_transformers.engine.request_state import RequestState
from openai_bls_transformers.model import lora, model_loader
from openai_bls_transformers.model.image_inputs import ImageInputs, PreparedImages
from openai_bls_transformers.options import EngineOptions
from openai_bls_transformers.runners import factory
from openai_bls_transformers.runners.runner import NO_LOAD, BatchingConfig, Runner, SequenceOutput
from openai_bls_transformers.runners.runner_choice import RunnerChoice
from openai_bls_transformers.self_test import self_test
from openai_bls_transformers.self_test.runner_trials import RunnerTrials
from openai_bls_transformers.speculation.drafter import Drafter
from openai_bls_transformers.speculation.speculation import speculation_config

logger = logging.getLogger(__name__)

_Command = GenerationRequest | TokenDelta | CompiledGrammar | PreparedImages | Future[bool] | int


class TransformersEngine:
    """An `Engine` that runs a Hugging Face checkpoint."""

    def __init__(self, version_dir: Path, manifest: Manifest, options: EngineOptions, on_step: StepListener) -> None:
        """Load the model, and start the engine's thread with the first runner that passes its trial.

        Args:
            version_dir: the folder that `manifest` lies in.
            manifest: manifest of the engine.
            options: start-up options, which override the manifest.
            on_step: the listener.

        Raises:
            EngineLoadError: the model does not load, does not fit into memory, or does not generate.
        """
        folder = checkpoint_dir(version_dir, manifest, hashes=options.verify_weights)
        facts = read_checkpoint(folder)
        kv_events = publisher.config_of(
            options.kv_events_endpoint, options.kv_events_replay_endpoint, options.kv_events_topic
        )
        self._on_step = on_step
        self._kv_events: KvEventPublisher | None = None
        self._generated = 0
        self._failed = False
        self._failure = ENGINE_FAILED
        """What is told of a failed engine."""
        self._stopping = False
        self._commands: CommandQueue[_Command] = CommandQueue(self._wake)
        self._batcher: Runner | None = None
        self._answers = threading.Event()
        self._thread: threading.Thread | None = None
        self._tried = threading.Event()
        """The trial of the runner is over."""
        self._discarded = False
        """True if the runner did not pass its trial."""
        device = model_loader.find_device(options.device)
        grammars = llguidance_backend.load(version_dir / "tokenizer", facts.vocab_size, facts.eos_token_ids)
        self._grammars = grammars
        compiler = None if grammars is None else GrammarCompiler(grammars, self._commands.put)
        if compiler is not None:
            compiler.warm_up()  # while the model loads, so that no grammar waits for it
        if device.type == "cpu":
            torch.set_num_threads(model_loader.threads(options))
        model = model_loader.load_model(folder, manifest, options, device)
        self._speculation = speculation_config(options)
        self._lora_lock = threading.Lock()
        self._adapters = lora.built_in(model, version_dir, manifest)
        self._live = LiveRequests(manifest.model_name, self._adapters)
        self._info = engine_info(facts, manifest, options, "" if grammars is None else grammars.backend)
        self._images = None
        if manifest.max_images:
            processor = VisionProcessor(version_dir / "tokenizer")
            self._images = ImageInputs(processor, model, self._commands.put)
        self._prefill_queue = PrefillQueue(model, compiler, self._wake, self._images)
        try:
            trials = RunnerTrials(model, self._info, manifest, options, self._images)
            trials.run(facts, self._speculation, partial(self._start_runner, trials))
        except BaseException:
            self._prefill_queue.close()
            raise
        self.self_test, self.rejected = trials.record, trials.rejected
        if kv_events is not None:
            self._publish_kv_events(kv_events)
        if device.type == "cuda":
            # Keep the garbage collector from scanning the weights: a pass stalls all sequences for 0.1 s.
            gc.collect()
            gc.freeze()

    def _start_runner(self, trials: RunnerTrials, choice: RunnerChoice, config: BatchingConfig) -> str | None:
        """Let `choice` run the model; returns why it does not, if so.

        Raises:
            EngineLoadError: another choice would not do either.
        """
        if torch.cuda.is_available():
            # The KV cache takes a share of what is free, which loading or a rejected runner may hold in cycles.
            gc.collect()
        hooks = self._before_step, self._on_outputs
        try:
            batcher = factory.make(trials.model, choice, config, *hooks, max_model_len=self._info.max_model_len)
        except factory.UnusableRunnerError as error:
            return str(error)
        self._batcher = batcher
        self._info = msgspec.structs.replace(self._info, max_num_tokens=config.max_num_tokens)
        self._tried.clear()
        self._thread = threading.Thread(target=self._run, name="transformers-engine", daemon=True)
        self._thread.start()
        self._discarded = True
        try:
            problem = trials.test(choice, config.page_size, self._generate)
            self._discarded = problem is not None
            self._generated = 0
        finally:
            if self._discarded:
                batcher.stop()
            self._tried.set()
            self._answers.set()
            if self._discarded:
                self._thread.join()
                self._batcher, self._failed = None, False
                batcher.free()
        return problem

    def _publish_kv_events(self, config: KvEventsConfig) -> None:
        try:
            self._kv_events = KvEventPublisher(config)
        except BaseException:
            self.close()
            raise
        # For what the self-test has left in the cache.
        self._wake()

    @property
    def info(self) -> EngineInfo:
        """Capabilities and limits of this engine."""
        return self._info

    def submit(self, request: GenerationRequest) -> None:
        """Take a request; an id that is already live is ignored, so that one id has one end."""
        submit(self._commands.put, self._on_step, request, self._refusal(request))

    def _refusal(self, request: GenerationRequest) -> str | None:
        problem = refusal(request, self._info)
        if problem is None and self._images is not None:
            problem = self._images.refusal(request, self._info)
        return problem

    def cancel(self, request_id: int) -> None:
        """Stop a request soon."""
        self._commands.put(request_id)

    def stats(self) -> EngineStats:
        """The present load."""
        batcher = self._batcher
        found = batcher.stats() if batcher else NO_LOAD
        return msgspec.structs.replace(
            found,
            waiting=found.waiting + self._live.waiting,
            generated_tokens=self._generated,
            failed=self._failed and not self._commands.closed,
        )

    def load_lora(self, name: str, path: str) -> None:
        """Load the adapter in the folder `path` beside the steps."""
        with self._lora_lock:
            require_room(self._info, name)
            assert self._adapters is not None
            self._adapters.load(name, Path(path))
            self._info = msgspec.structs.replace(self._info, lora_names=self._adapters.names)

    def unload_lora(self, name: str) -> None:
        """Take no more requests for an adapter; those that it has finish."""
        with self._lora_lock:
            require_loaded(self._info, name)
            assert self._adapters is not None
            self._adapters.unload(name)
            self._info = msgspec.structs.replace(self._info, lora_names=self._adapters.names)

    def reset_prefix_cache(self) -> None:
        """Forget the cached prompts, between two steps."""
        await_reset(self._commands.put)

    def close(self) -> None:
        """End every live request with "cancelled", free the model, the KV cache and the thread."""
        self._commands.close()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join()
        if self._kv_events is not None:
            self._kv_events.close()

    def _wake(self) -> None:
        if self._batcher is not None:
            self._batcher.wake()
        self._answers.set()

    # Everything below runs on the engine's thread.

    def _run(self) -> None:
        assert self._batcher is not None
        batcher = self._batcher
        try:
            error = batcher.run()
        except BaseException as raised:
            # One that comes out of the library's loop: another signature, or an exit. Without an end to its requests
            # a load would wait for them forever.
            error = raised
        if error is not None:
            logger.error("the engine died: %s: %s", type(error).__name__, error)
        self._failed = True
        # Whatever the batcher had not failed by itself, then all that still comes, until `close`. A trial's requests
        # are nobody else's, and are told why.
        if error is not None and not self._tried.is_set():
            self._failure = f"the engine died: {type(error).__name__}: {first_line(error)}"
        emit(self._on_step, self._end_all("error", self._failure))
        self._answer_until(self._tried.is_set)
        self._failure = ENGINE_FAILED
        if self._discarded:
            return
        self._answer_until(lambda: self._commands.closed)
        self._before_step()
        self._prefill_queue.close()
        self._batcher = self._speculation = None
        batcher.free()
        del batcher
        if torch.cuda.is_available():
            gc.unfreeze()
            gc.collect()
            torch.cuda.empty_cache()

    def _answer_until(self, is_over: Callable[[], bool]) -> None:
        """Answer what comes in without a runner; `_wake` is called when `is_over` may have changed."""
        while not is_over():
            self._answers.clear()
            self._before_step()
            if not is_over():
                self._answers.wait()

    def _before_step(self) -> None:
        """Apply what came in since the last step."""
        closed = self._commands.closed
        deltas: list[TokenDelta] = []
        for command in self._commands.drain():
            self._apply(command, deltas)
        if closed:
            deltas += self._end_all("cancelled")
            if self._batcher is not None and not self._failed and not self._stopping:
                self._stopping = True
                self._batcher.stop()
        elif not self._failed:
            self._settle(self._prefill_queue.examine(self._is_live, self._are_steps_due), deltas)
        if self._kv_events is not None and self._batcher is not None:
            events = self._batcher.take_kv_events(self._adapter_name)
            if events:
                self._kv_events.publish(events)
        emit(self._on_step, deltas)

    def _is_live(self, state: RequestState) -> bool:
        return self._live.of_sequence(state.key) is not None

    def _are_steps_due(self) -> bool:
        load = NO_LOAD if self._batcher is None else self._batcher.stats()
        return load.running + load.waiting > 0

    def _adapter_name(self, number: int) -> str:
        assert self._adapters is not None
        return self._adapters.name_of(number)

    def _apply(self, command: _Command, deltas: list[TokenDelta]) -> None:
        if isinstance(command, TokenDelta):
            if command.request_id in self._live:
                logger.warning("request id %d is already live: ignored", command.request_id)
            else:
                deltas.append(command)
        elif isinstance(command, int):
            state = self._live.remove(command)
            if state is not None:
                self._cancel(state)
                deltas.append(TokenDelta(command, [], "cancelled"))
        elif isinstance(command, Future):
            self._reset(command)
        elif isinstance(command, CompiledGrammar):
            state = self._live.of_sequence(command.key)
            if state is not None:
                self._settle(self._prefill_queue.compiled(state, command), deltas)
        elif isinstance(command, PreparedImages):
            state = self._live.of_sequence(command.key)
            if state is not None:
                self._settle(self._prefill_queue.prepared(state), deltas)
        else:
            self._start(command, deltas)

    def _reset(self, reset: Future[bool]) -> None:
        """Reset the prefix cache: True if nothing is left of it."""
        try:
            # One that has failed has no cache that anybody could use.
            reset.set_result(self._failed or self._batcher is None or self._batcher.reset_prefix_cache())
        except Exception as error:
            reset.set_exception(error)

    def _start(self, request: GenerationRequest, deltas: list[TokenDelta]) -> None:
        if request.request_id in self._live:
            logger.warning("request id %d is already live: ignored", request.request_id)
            return
        if self._failed or self._batcher is None:
            deltas.append(TokenDelta(request.request_id, [], "error", error=self._failure))
            return
        try:
            state = self._live.add(request)
        except UnloadedAdapterError as error:
            deltas.append(TokenDelta(request.request_id, [], "error", error=str(error), invalid=True))
            return
        self._settle(self._prefill_queue.start(state), deltas)

    def _settle(self, prepared: Sequence[Prepared], deltas: list[TokenDelta]) -> None:
        """End requests that were done before their first step; the others go to the batcher."""
        for state, known in prepared:
            end = known or self._add(state)
            if end is not None:
                self._live.remove(state.request.request_id)
                deltas.append(end)

    def _add(self, state: RequestState) -> TokenDelta | None:
        """Hand a request to the batcher; returns its end if that cannot be done."""
        request = state.request
        assert self._batcher is not None
        self._live.batched(state)
        if self._speculation is not None:
            state.drafter = Drafter(self._speculation, request.prompt_token_ids, request.prediction, state.processors)
        try:
            sampling, stops = state.sampling(self._info.vocab_size), request.stop_token_ids
            self._batcher.add(state.key, request.prompt_token_ids, request.max_tokens, stops, sampling, state.images)
        except Exception as error:
            return state.failed(error)
        return None

    def _on_outputs(self, outputs: Sequence[SequenceOutput]) -> None:
        """Turn a step's outputs into deltas; those of cancelled requests are passed over."""
        found = ((self._live.of_sequence(output.request_id), output) for output in outputs)
        current = [(state, output) for state, output in found if state is not None]
        if self._grammars is not None:
            accepted = [state.accept(output) for state, output in current]
            self._grammars.fill_bitmasks([constraint for constraint in accepted if constraint is not None])
        deltas: list[TokenDelta] = []
        for state, output in current:
            seen = state.cursor
            delta = state.advance(output)
            if delta is None:
                continue
            self._generated += state.cursor - seen
            if delta.finish_reason is not None:
                self._live.remove(delta.request_id)
                # The batcher knows of all other ends.
                if output.error is None and (
                    delta.finish_reason == "error" or (delta.finish_reason == "stop" and delta.stop_token_id is None)
                ):
                    self._cancel(state)
            deltas.append(delta)
        emit(self._on_step, deltas)

    def _cancel(self, state: RequestState) -> None:
        if not state.batched:
            self._prefill_queue.cancel(state)
        elif self._batcher is not None and not self._failed:
            self._batcher.cancel(state.key)

    def _end_all(self, reason: EngineFinishReason, error: str | None = None) -> list[TokenDelta]:
        ended = self._live.remove_all()
        for state in ended:
            if not state.batched:
                self._prefill_queue.cancel(state)
        return [TokenDelta(state.request.request_id, [], reason, error=error) for state in ended]

    # Start-up.

    def _generate(self, requests: Sequence[GenerationRequest], *, replayed: bool = False) -> self_test.Answers:
        """Answers to requests, before anybody listens; see `self_test.Generate`."""
        listener, answers = self._on_step, self_test.Answers(requests)
        self._on_step = answers
        # At once, so that they are one batch whatever the threads do.
        self._commands.put(*(command_of(request, self._refusal(request)) for request in requests))
        answers.wait(self.cancel if replayed else None)
        self._on_step = listener
        return answers
