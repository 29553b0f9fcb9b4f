"""The llama.cpp engine: sequences of many requests in shared steps of one context.

As in the other engines, one thread owns all state: it takes commands in between two steps, decodes a step, samples a
token for each sequence whose tokens are all computed, and calls the listener once. A prompt is computed in pieces, so
that running sequences go on meanwhile. Where the memory does not suffice, what ended sequences left goes first; then
the youngest sequence gives its place back, and is computed again later.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from concurrent.futures import Future

from openai_bls.core.engine import EngineStats, LoraError, StepListener
from openai_bls.core.engine_types import EngineFinishReason, EngineInfo, GenerationRequest, TokenDelta
from openai_bls.engines.capabilities import ENGINE_FAILED, refusal
from openai_bls.engines.command_queue import CommandQueue, await_reset, emit, submit
from openai_bls.engines.grammars.compiler import CompiledGrammar, GrammarCompiler
from openai_bls.engines.grammars.matcher import ConstraintFactory
from openai_bls_llama_cpp.model import STEP_TOKENS, DecodeError, LlamaModel, Row
from openai_bls_llama_cpp.places import Places, common_length
from openai_bls_llama_cpp.sequence import Sequence

logger = logging.getLogger(__name__)

_PROMPT_TOKENS = 64
"""Tokens of prompts in a step in which other sequences go on: their next tokens wait for it."""
NEXT_REQUEST_S = 0.003
"""Seconds after a rest in which a further request is waited for; a step takes ten times as long and more."""
_WORTH_WAITING = 32
"""Tokens of a prompt that another one is just computing, for which a request waits instead of doing the same."""

_NO_ADAPTERS = "the engine llama_cpp takes no adapters: build with --engine transformers or --engine vllm"

_Command = GenerationRequest | TokenDelta | CompiledGrammar | Future | int  # type: ignore[type-arg]


class LlamaCppEngine:
    """An `Engine` over a GGUF file.

    Args:
        model: the loaded model, which the engine closes.
        info: identity, limits and capabilities.
        grammars: compiler of grammars for the model's vocabulary; None without any.
        on_step: the listener.
        sharing: prompts share the memory of their common beginning.
    """

    def __init__(
        self,
        model: LlamaModel,
        info: EngineInfo,
        grammars: ConstraintFactory | None,
        on_step: StepListener,
        *,
        sharing: bool = True,
    ) -> None:
        self._model = model
        self._info = info
        self._on_step = on_step
        self._wake = threading.Event()
        self._commands: CommandQueue[_Command] = CommandQueue(self._wake.set)
        self._grammars = grammars
        self._compiler = None if grammars is None else GrammarCompiler(grammars, self._commands.put)
        if self._compiler is not None:
            self._compiler.warm_up()
        self._places = Places(model, info.max_batch_size, sharing=sharing)
        self._live: dict[int, Sequence] = {}
        self._compiling: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._sequences = 0
        self._steps = 0
        self._generated = 0
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="llama-cpp-engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> EngineInfo:
        """Capabilities and limits of this engine."""
        return self._info

    def submit(self, request: GenerationRequest) -> None:
        """Take a request; an id that is already live is ignored, so that one id has one end."""
        submit(self._commands.put, self._on_step, request, refusal(request, self._info))

    def cancel(self, request_id: int) -> None:
        """Stop a request soon."""
        self._commands.put(request_id)

    def stats(self) -> EngineStats:
        """The present load."""
        cells = self._model.cells
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting) + len(self._compiling),
            kv_cache_usage=min(1.0, self._places.tokens / cells),
            steps=self._steps,
            generated_tokens=self._generated,
            failed=self._failed and not self._commands.closed,
            kv_blocks=cells,
            kv_block_size=1,
        )

    def load_lora(self, name: str, path: str) -> None:
        """Refuse: the engine takes no adapters."""
        raise LoraError(_NO_ADAPTERS)

    def unload_lora(self, name: str) -> None:
        """Refuse, as above."""
        raise LoraError(_NO_ADAPTERS)

    def reset_prefix_cache(self) -> None:
        """Forget the cached prompts, between two steps."""
        await_reset(self._commands.put)

    def close(self) -> None:
        """End every live request with "cancelled", free the memory and the thread."""
        self._commands.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # Everything below runs on the engine's thread.

    def _run(self) -> None:
        while True:
            self._wake.clear()
            # Asked first: what came in before it was closed is in the queue.
            closed = self._commands.closed
            emit(self._on_step, self._take_commands())
            if closed:
                break
            if not self._running and not self._waiting:
                self._wake.wait()
                self._take_what_comes()
                continue
            try:
                emit(self._on_step, self._step())
            except Exception:
                logger.exception("the engine died")
                self._failed = True
                emit(self._on_step, self._end_all("error", ENGINE_FAILED))
        emit(self._on_step, self._end_all("cancelled"))
        if self._compiler is not None:
            self._compiler.close()
        self._model.close()

    def _take_what_comes(self) -> None:
        """After a rest: wait as long as requests come one after the other, so that their prompts share steps.

        One that came a moment later would wait for a whole step, and run on after the others.
        """
        for _ in range(self._info.max_batch_size):
            self._wake.clear()
            emit(self._on_step, self._take_commands())
            is_full = len(self._waiting) >= self._info.max_batch_size
            if is_full or self._commands.closed or not self._wake.wait(NEXT_REQUEST_S):
                return

    def _take_commands(self) -> list[TokenDelta]:
        """Apply what came in; returns the answers that need no step."""
        deltas: list[TokenDelta] = []
        for command in self._commands.drain():
            if isinstance(command, GenerationRequest):
                self._start(command, deltas)
            elif isinstance(command, TokenDelta):
                if command.request_id in self._live:
                    logger.warning("request id %d is already live: ignored", command.request_id)
                else:
                    deltas.append(command)
            elif isinstance(command, CompiledGrammar):
                self._compiled(command, deltas)
            elif isinstance(command, Future):
                command.set_result(self._failed or self._places.forget_all())
            elif (sequence := self._live.get(command)) is not None:
                self._end(sequence)
                deltas.append(TokenDelta(command, [], "cancelled"))
        return deltas

    def _start(self, request: GenerationRequest, deltas: list[TokenDelta]) -> None:
        if request.request_id in self._live:
            logger.warning("request id %d is already live: ignored", request.request_id)
        elif self._failed:
            deltas.append(TokenDelta(request.request_id, [], "error", error=ENGINE_FAILED))
        elif not request.max_tokens:
            deltas.append(TokenDelta(request.request_id, [], "length"))
        else:
            self._sequences += 1
            sequence = Sequence(request, str(self._sequences), self._info.model_name)
            self._live[request.request_id] = sequence
            if request.grammar is None or self._compiler is None:
                self._waiting.append(sequence)
            else:
                self._compiling[sequence.key] = sequence
                self._compiler.start(sequence.key, request)

    def _compiled(self, result: CompiledGrammar, deltas: list[TokenDelta]) -> None:
        sequence = self._compiling.pop(result.key, None)
        if sequence is None:
            return
        if result.constraint is None:
            request_id = sequence.request.request_id
            self._end(sequence)
            deltas.append(TokenDelta(request_id, [], "error", error=result.error, invalid=result.invalid))
            return
        sequence.constraint = result.constraint
        self._waiting.append(sequence)

    def _end(self, sequence: Sequence) -> None:
        """Forget a sequence wherever it is; what it has computed stays for prompts that begin alike."""
        del self._live[sequence.request.request_id]
        if self._compiling.pop(sequence.key, None) is not None and self._compiler is not None:
            self._compiler.cancel(sequence.key)
        if sequence.place is not None:
            self._running.remove(sequence)
            self._places.end(sequence.place)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def _end_all(self, reason: EngineFinishReason, error: str | None = None) -> list[TokenDelta]:
        ended = [*self._live.values()]
        for sequence in ended:
            self._end(sequence)
        return [TokenDelta(sequence.request.request_id, [], reason, error=error) for sequence in ended]

    def _step(self) -> list[TokenDelta]:
        """Decode a step, and sample where all tokens are computed."""
        self._admit()
        if self._model.in_parts and self._model.can_share:
            self._places.close_gap()
        rows, owners = self._plan()
        while not self._model.decode(rows):
            self._make_room()
            rows, owners = self._plan()
        self._steps += 1
        sampled: list[Sequence] = []
        for row, sequence in zip(rows, owners, strict=True):
            assert sequence.place is not None
            self._places.advance(sequence.place, row.token_ids)
            sequence.computed += len(row.token_ids)
            if row.has_logits:
                sampled.append(sequence)
        return self._sample(sampled) if sampled else []

    def _admit(self) -> None:
        """Give places to waiting sequences, in their order, as far as memory and places suffice."""
        while self._waiting:
            sequence = self._waiting[0]
            if self._running and self._places.tokens + sequence.missing >= self._model.cells:
                return
            if self._is_being_computed(sequence):
                return
            found = self._places.begin(sequence.token_ids)
            if found is None:
                return
            sequence.begin(*found)
            self._waiting.popleft()
            self._running.append(sequence)

    def _is_being_computed(self, sequence: Sequence) -> bool:
        """Whether most of the sequence's prompt is about to be computed for another one, from which it can be taken."""
        if not self._model.can_share or not self._places.sharing:
            return False
        return any(
            common_length(other.token_ids, sequence.token_ids) - other.computed >= _WORTH_WAITING
            for other in self._running
            if other.missing > 1
        )

    def _plan(self) -> tuple[list[Row], list[Sequence]]:
        """Rows of the next step and their sequences, in the order of their places: of each sequence with one token to
        compute, and pieces of prompts."""
        going_on = [sequence for sequence in self._running if sequence.missing == 1]
        owners = going_on[:STEP_TOKENS]
        left = min(STEP_TOKENS - len(owners), _PROMPT_TOKENS if owners else STEP_TOKENS)
        counts = [1] * len(owners)
        for sequence in self._running:
            if left and sequence.missing > 1:
                owners.append(sequence)
                counts.append(min(left, sequence.missing))
                left -= counts[-1]
        rows = [self._row(sequence, count) for sequence, count in zip(owners, counts, strict=True)]
        ordered = sorted(zip(rows, owners, strict=True), key=lambda one: one[0].place)
        return [row for row, _ in ordered], [sequence for _, sequence in ordered]

    def _row(self, sequence: Sequence, count: int) -> Row:
        assert sequence.place is not None
        start = sequence.computed
        token_ids = sequence.token_ids[start : start + count]
        return Row(self._places.number(sequence.place), start, token_ids, has_logits=count == sequence.missing)

    def _make_room(self) -> None:
        """Free memory for a step.

        Raises:
            DecodeError: one sequence alone does not fit, which the limits rule out.
        """
        if self._places.evict():
            return
        if len(self._running) < 2:
            raise DecodeError("a sequence does not fit into the cells of the context")
        youngest = self._running.pop()
        assert youngest.place is not None
        self._places.end(youngest.place, forget=True)
        youngest.place, youngest.computed = None, 0
        self._waiting.appendleft(youngest)

    def _sample(self, sequences: list[Sequence]) -> list[TokenDelta]:
        logits = self._model.logits()[:, : self._info.vocab_size]
        constraints = [sequence.constraint for sequence in sequences if sequence.constraint is not None]
        if self._grammars is not None and len(constraints) > 1:
            self._grammars.fill_bitmasks(constraints)
        deltas = [sequence.sample(row) for sequence, row in zip(sequences, logits, strict=True)]
        for sequence, delta in zip(sequences, deltas, strict=True):
            self._generated += delta.finish_reason != "error"
            if delta.finish_reason is not None:
                self._end(sequence)
        return deltas
