"""The thread that steps all live requests in turn. It is no daemon: a process ends only after `LLM.shutdown()`."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorrt_llm import _sampler, _settings
from tensorrt_llm._guided import Guides, Matcher
from tensorrt_llm._model import Cursor, Model
from tensorrt_llm._result import (
    EventLoopShutdownError,
    IterationResult,
    Logprob,
    RequestError,
    RequestOutput,
    Response,
    hand_over,
)


@dataclass
class _Sequence:
    """One of a request's n."""

    request: _Request
    index: int
    cursor: Cursor
    sampler: _sampler.Sampler
    matcher: Matcher | None
    pending: list[int]
    """To be taken in by the next step."""
    produced: int = 0
    unsent: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cumulative: float = 0.0
    last: list[int] = field(default_factory=list)
    """The newest tokens, for stop words."""


@dataclass
class _Request:
    output: RequestOutput
    params: Any
    prompt: list[int]
    adapter: Path | None
    streaming: bool
    live: int = 0


class Executor:
    """Runs a model for any number of requests."""

    def __init__(
        self,
        model: Model,
        guides: Guides | None,
        flow: str,
        max_batch_size: int,
        max_seq_len: int,
        draft_tokens: int = 0,
    ) -> None:
        self._model = model
        self._guides = guides
        self.flow = flow
        self._max_batch_size = max_batch_size
        self._max_seq_len = max_seq_len
        self._step_tokens = max(1 + draft_tokens, _settings.step_tokens())
        self._changed = threading.Condition()
        self._waiting: deque[_Request] = deque()
        self._live: deque[_Sequence] = deque()
        self._aborted: set[int] = set()
        self._closed = False
        self._touched: list[RequestOutput] = []
        self.doing_shutdown = False
        self._error_queue: queue.Queue[Exception] = queue.Queue()
        self.statistics = IterationResult()
        self.events = IterationResult()
        self._thread = threading.Thread(target=self._run, name="fake-tensorrt-llm")
        self._thread.start()

    def is_shutdown(self) -> bool:
        """Whether no requests are taken any more."""
        return self.doing_shutdown

    def handle_background_error(self, error: str | Exception | None = None) -> None:
        """Raise what went wrong, for whoever takes a response in; all but a request's text ends the executor."""
        if isinstance(error, str):
            raise RequestError(error)
        if error is None and not self._error_queue.empty():
            error = self._error_queue.get()
        if error is not None:
            self.shutdown()
            raise error

    def submit(self, output: RequestOutput, params: Any, adapter: Path | None, streaming: bool) -> None:
        """Queue a request.

        A rank that refuses it tells so at once in 0.20; later versions answer with the exception itself.
        """
        refusal = _settings.failure("submit")
        if refusal is not None and _settings.release() < (1, 0):
            raise RequestError(refusal)
        with self._changed:
            self._waiting.append(_Request(output, params, output.prompt_token_ids, adapter, streaming))
            self._changed.notify()

    def abort(self, request_id: int) -> None:
        """End a request at the next step."""
        with self._changed:
            self._aborted.add(request_id)
            self._changed.notify()

    def shutdown(self) -> None:
        """Abort what runs and end the thread; raises what went wrong in the background."""
        if self.doing_shutdown:
            return
        self.doing_shutdown = True
        with self._changed:
            self._aborted |= {one.output.request_id for one in (*self._waiting, *(s.request for s in self._live))}
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self.handle_background_error()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting or self._live)
                self._drop_aborted()
                closed = self._closed
                if not closed:
                    self._admit()
            self._hand_over()
            if closed:
                return
            started = time.monotonic()
            what = _settings.failure("serve")
            if what is not None and self._live:
                if what == "silent":
                    self._error_queue.put(RuntimeError("a rank has ended"))
                    return
                self._fail(what)
                self._hand_over()
                continue
            for _ in range(len(self._live)):
                sequence = self._live.popleft()
                try:
                    if not self._step(sequence):
                        self._live.append(sequence)
                except Exception as error:
                    self._refuse(sequence.request, str(error))
            # First, so that all of it is there once the last response is.
            if self.flow == "tensorrt":
                self.statistics.items.append('{"iter": 0}')
            self.events.items.append("null")
            self._hand_over()
            rest = _settings.step_delay_s() - (time.monotonic() - started)
            if rest > 0:
                time.sleep(rest)

    def _put(self, request: _Request, response: Response) -> None:
        request.output.put(response)
        self._touched.append(request.output)

    def _hand_over(self) -> None:
        touched, self._touched = self._touched, []
        try:
            hand_over(dict.fromkeys(touched))
        except EventLoopShutdownError as error:
            self._error_queue.put(error)

    def _fail(self, what: str) -> None:
        with self._changed:
            requests = {id(s.request): s.request for s in self._live} | {id(r): r for r in self._waiting}
            self._live.clear()
            self._waiting.clear()
            self.doing_shutdown = self._closed = what == "fatal"
        text = "Executor worker died" if what == "fatal" else what
        for request in requests.values():
            self._put(request, Response(error=text, is_final=True))

    def _refuse(self, request: _Request, text: str) -> None:
        self._live = deque(other for other in self._live if other.request is not request)
        self._put(request, Response(error=text, is_final=True))

    def _drop_aborted(self) -> None:
        if not self._aborted:
            return
        for request in [one for one in self._waiting if one.output.request_id in self._aborted]:
            self._waiting.remove(request)
            self._put(request, Response(finish="cancelled", is_final=True))
        kept: deque[_Sequence] = deque()
        for sequence in self._live:
            if sequence.request.output.request_id in self._aborted:
                self._send(sequence, "cancelled")
            else:
                kept.append(sequence)
        self._live = kept
        self._aborted.clear()

    def _admit(self) -> None:
        while self._waiting and len(self._live) < self._max_batch_size:
            request = self._waiting.popleft()
            params = request.params
            refusal = _settings.failure("submit")
            if refusal is not None:
                self._put(request, Response(error=RequestError(refusal), is_final=True))
                continue
            try:
                if len(request.prompt) >= self._max_seq_len:
                    raise ValueError(
                        f"Prompt length ({len(request.prompt)}) exceeds maximum input length ({self._max_seq_len})."
                    )
                if any(not 0 <= token < self._model.vocab_size for token in request.prompt):
                    raise ValueError("Token ID out of range")
                sequences = [self._sequence(request, index) for index in range(params.best_of)]
            except Exception as error:
                self._put(request, Response(error=str(error), is_final=True))
                continue
            request.live = len(sequences)
            self._live.extend(sequences)

    def _sequence(self, request: _Request, index: int) -> _Sequence:
        params = request.params
        matcher = None
        if params.guided_decoding is not None:
            if self._guides is None:
                raise ValueError("Guided decoding is not enabled: set guided_decoding_backend")
            matcher = self._guides.start(params.guided_decoding)
        end_id = None if params.ignore_eos else params.end_id
        cursor = self._model.start(request.adapter, end_id)
        return _Sequence(
            request, index, cursor, _sampler.Sampler(params, request.prompt, index), matcher, list(request.prompt)
        )

    def _step(self, sequence: _Sequence) -> bool:
        """One token; returns whether the sequence is at its end."""
        params = sequence.request.params
        raw = sequence.cursor.advance(sequence.pending)
        mask = None if sequence.matcher is None else sequence.matcher.mask()
        token = sequence.sampler.draw(raw, mask)
        sequence.pending = [token]
        if sequence.matcher is not None:
            sequence.matcher.accept(token)
        sequence.produced += 1
        ended = not params.ignore_eos and token == params.end_id
        # The TensorRT flow keeps the end token to itself, the PyTorch flow delivers it.
        if not ended or self.flow == "pytorch":
            sequence.unsent.append(token)
            if params.logprobs:
                found = _sampler.logprobs(raw, token, params.logprobs)
                sequence.logprobs.append(found)
                sequence.cumulative += found[token].logprob
        finish = "end_id" if ended else None
        if finish is None:
            sequence.last = [*sequence.last, token][-64:]
            words = [ids for _, ids in params._get_stop_words() if ids]
            if any(sequence.last[-len(w) :] == w for w in words):
                finish = "stop_words"
            elif (
                sequence.produced >= params.max_tokens
                or len(sequence.request.prompt) + sequence.produced >= self._max_seq_len
            ):
                finish = "length"
        if finish is not None and _settings.late_final() and sequence.unsent:
            self._send(sequence, None)
        if finish is not None or (sequence.request.streaming and len(sequence.unsent) >= self._step_tokens):
            self._send(sequence, finish)
        return finish is not None

    def _send(self, sequence: _Sequence, finish: str | None) -> None:
        request = sequence.request
        if finish is not None:
            request.live -= 1
        wants = bool(request.params.logprobs)
        self._put(
            request,
            Response(
                sequence.index,
                sequence.unsent,
                sequence.logprobs if wants else None,
                sequence.cumulative if wants else None,
                finish,
                is_final=finish is not None and request.live == 0,
            ),
        )
        sequence.unsent, sequence.logprobs = [], []
