"""The pipeline that /v1 and Triton's endpoints share: request → prompt token ids → the engine → an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple, Protocol, TypeVar

from openai_bls.api.chat.chunks import Answer, ChunkEncoder, Envelope, FinishReason, Usage, new_id
from openai_bls.api.chat.logprobs import LogprobRenderer
from openai_bls.api.chat.validation import ValidRequest
from openai_bls.api.chat.writers import AnswerWriter, Sink, StreamWriter
from openai_bls.core.engine_types import Grammar, PromptResult
from openai_bls.core.errors import ApiError, InvalidRequestError, OverloadedError
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline import prepare, sequences
from openai_bls.pipeline.generation import Generation, Outcome
from openai_bls.pipeline.metrics import Metrics
from openai_bls.pipeline.model_registry import Models, ServedModel, Target
from openai_bls.pipeline.sequence import Writer

T = TypeVar("T")

Health = Literal["ok", "draining", "engine failed", "engine not loaded"]
"""All but the first mean that requests are not answered, or not for long."""

# Grammars have threads of their own: a few that take long hold up other grammars only.
_GRAMMARS = ThreadPoolExecutor(2, thread_name_prefix="grammar")


class WholeWriter(Writer, Protocol[T]):
    """A writer that makes one whole answer."""

    @property
    def answer(self) -> asyncio.Future[T]:
        """Resolved at the end, by the answer or an error."""
        ...


class RequestRecord(NamedTuple):
    """One request, looked back on. Times are of `time.monotonic()`, in seconds."""

    endpoint: str
    model: str
    outcome: Outcome
    finish_reasons: list[FinishReason]
    usage: Usage
    began_at: float
    first_token_at: float | None
    ended_at: float


class Service:
    """Answers requests. One for each `openai_bls` instance; every method belongs to the event loop's thread.

    Args:
        models: that are served.
        settings: of the model `openai_bls`.
        on_busy: called with the number of requests in progress whenever it changes.
    """

    def __init__(
        self,
        models: Models,
        settings: OpenAiBlsSettings,
        on_busy: Callable[[int], None] = lambda busy: None,
    ) -> None:
        self.models = models
        self.settings = settings
        self._on_busy = on_busy
        self.metrics = Metrics(self)
        self.on_end: Callable[[RequestRecord], None] = self.metrics.ended
        """Called once for each request that got as far as the engine, when it ends."""
        self.on_refused: Callable[[str, ApiError], None] = self.metrics.refused
        """Called with the endpoint and the error of each request that is answered with one."""
        self._in_progress = 0
        self.draining = False

    @property
    def in_progress(self) -> int:
        """Requests that are being prepared or generated."""
        return self._in_progress

    @property
    def health(self) -> Health:
        """Whether requests are answered.

        An engine that has failed stays so until it is loaded again, whatever others do. One that is not loaded is
        missed only where it was the last: a model may be unloaded on purpose.
        """
        if self.draining:
            return "draining"
        if any(model.failed for model in self.models):
            return "engine failed"
        return "ok" if any(model.engine.connected for model in self.models) else "engine not loaded"

    async def answer(self, request: ValidRequest) -> Answer:
        """The whole answer to a request that is not streamed. Cancelling this coroutine cancels the generation.

        Raises:
            ApiError: it cannot be honoured, or the engine failed.
        """
        target = self.check(request)
        writer = AnswerWriter(
            _envelope(request, target),
            candidates=request.candidates,
            n=request.n,
            renderer=_renderer(request, target),
        )
        return await _whole(await self._prepare(request, target, writer), writer)

    async def complete(self, request: ValidRequest, writer: WholeWriter[T]) -> T:
        """What `writer` makes of the request; see `answer`."""
        return await _whole(await self.prepare(request, writer), writer)

    async def stream(self, request: ValidRequest, sink: Sink) -> Generation:
        """Begin a streamed answer into `sink`; returns once it has begun, the rest comes by itself.

        Raises:
            ApiError: it cannot be honoured; nothing has been written to the sink.
        """
        target = self.check(request)
        envelope = _envelope(request, target)
        writer = StreamWriter(
            ChunkEncoder(envelope, usage_null=request.include_usage, sse=sink.sse),
            sink,
            envelope,
            include_usage=request.include_usage,
            renderer=_renderer(request, target),
        )
        generation = await self._prepare(request, target, writer)
        if request.continuous_usage_stats:
            writer.usage = lambda: generation.usage
        return _started(generation, writer.open if sink.opens_at_once else None)

    async def begin(self, request: ValidRequest, writer: Writer) -> Generation:
        """Begin to answer into `writer`, which has been told nothing if this raises; see `prepare`."""
        return _started(await self.prepare(request, writer))

    def check(self, request: ValidRequest) -> Target:
        """What the request is for, if it can be taken at all; before anything is made for each of its sequences.

        Raises:
            ApiError: it cannot.
        """
        target = self.models.find(request.model)
        prepare.check_supported(request, target.model)
        sequences = request.prompt_count * request.candidates
        if sequences > self.settings.max_choices:
            raise InvalidRequestError(
                f"The request asks for {sequences} sequences; at most {self.settings.max_choices} are supported.",
                param="n" if request.best_of is None else "best_of",
            )
        if request.prompt is not None and request.prompt.chat_template and not self.settings.trust_chat_template:
            raise InvalidRequestError(
                "'chat_template' is not taken from requests here: a template is a program. The parameter "
                "'trust_chat_template' of the model openai_bls allows it.",
                param="chat_template",
            )
        self.check_admission()
        return target

    def check_admission(self) -> None:
        """Whether the server takes one more request.

        Raises:
            OverloadedError: it does not.
        """
        if self.draining:
            raise OverloadedError("The server is shutting down.")
        if self._in_progress >= self.settings.max_concurrent_requests:
            raise OverloadedError(
                f"The server has {self._in_progress} requests in progress, its maximum; try again later."
            )

    async def prepare(self, request: ValidRequest, writer: Writer) -> Generation:
        """Everything before the engine: the prompt, its length, the sequences. The generation is still to be started.

        Raises:
            ApiError: it cannot be honoured; nothing has been written.
        """
        return await self._prepare(request, self.check(request), writer)

    async def _prepare(self, request: ValidRequest, target: Target, writer: Writer) -> Generation:
        began_at = time.monotonic()
        self.count(1)
        try:
            await target.model.engine.ready()
            prompts, bad_words = await _prompt_token_ids(request, target.model)
            tail = prepare.prompt_tail(request, target.model, prompts[0])
            constraint = await _constraint(request, target.model, tail)
            made = sequences.make(sequences.Prepared(request, target, prompts, bad_words, tail, constraint), writer)
        except BaseException:
            self.count(-1)
            raise
        return Generation(
            target.model.engine,
            made,
            writer,
            [len(prompt) for prompt in prompts],
            on_end=lambda generation, outcome: self._ended(request, target, began_at, generation, outcome),
        )

    def _ended(
        self, request: ValidRequest, target: Target, began_at: float, generation: Generation, outcome: Outcome
    ) -> None:
        self.count(-1)
        self.on_end(
            RequestRecord(
                endpoint=request.api or request.endpoint,
                model=target.lora_name or target.model.info.model_name,
                outcome=outcome,
                finish_reasons=generation.finish_reasons,
                usage=generation.usage,
                began_at=began_at,
                first_token_at=generation.first_token_at,
                ended_at=time.monotonic(),
            )
        )

    def count(self, change: int) -> None:
        """So many more requests (or fewer) are in progress."""
        self._in_progress += change
        self.metrics.set_in_progress(self._in_progress)
        self._on_busy(self._in_progress)


def _envelope(request: ValidRequest, target: Target) -> Envelope:
    chat = request.endpoint == "chat.completions"
    return Envelope(
        chat=chat,
        id=new_id("chatcmpl" if chat else "cmpl"),
        created=int(time.time()),
        model=request.model or target.model.info.model_name,
        fingerprint=target.model.fingerprint,
        choices=request.prompt_count * request.candidates,
    )


def _renderer(request: ValidRequest, target: Target) -> LogprobRenderer | None:
    if request.logprobs is None:
        return None
    return LogprobRenderer(target.model.detokenizers, chat=request.endpoint == "chat.completions")


def _started(generation: Generation, first: Callable[[], None] | None = None) -> Generation:
    """`generation`, started after `first`; if that fails, nothing of it is left."""
    try:
        if first is not None:
            first()
        generation.start()
    except BaseException:
        generation.cancel()
        raise
    return generation


async def _whole(generation: Generation, writer: WholeWriter[T]) -> T:
    try:
        generation.start()
        return await writer.answer
    finally:
        generation.cancel()


async def _prompt_token_ids(request: ValidRequest, model: ServedModel) -> tuple[list[list[int]], list[list[int]]]:
    """The prompts, and the bad words."""
    result = PromptResult() if request.prompt is None else await model.prepare(request.prompt)
    prompts = request.prompt_token_ids or result.prompt_token_ids
    prepare.check_token_ids(request.prompt_token_ids, model, "prompt")
    if request.truncate_prompt_tokens is not None:
        prompts = [prompt[-request.truncate_prompt_tokens :] for prompt in prompts]
    for prompt in prompts:
        prepare.check_length(request, model, prompt)
    return prompts, result.bad_words


async def _constraint(request: ValidRequest, model: ServedModel, tail: str) -> Grammar | None:
    found = prepare.wanted(request, model, tail)
    if found is None:
        return None
    # A large schema takes a while to be looked through, and other requests' tokens must not wait for it.
    return await asyncio.get_running_loop().run_in_executor(_GRAMMARS, prepare.constraint, found, model)
