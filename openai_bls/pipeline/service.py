"""Service shared by all APIs: admission, preparation and generation of requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from openai_bls.core.api_keys import ApiKeys, key_name
from openai_bls.core.errors import ApiError, OverloadedError
from openai_bls.core.request import ValidRequest
from openai_bls.core.request_record import Outcome, RequestRecord
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.core.usage import FinishReason, Usage
from openai_bls.pipeline.chat_models import ChatModels
from openai_bls.pipeline.generation import Generation
from openai_bls.pipeline.guards import Guards, guarded_request
from openai_bls.pipeline.metrics import Metrics
from openai_bls.pipeline.model_registry import Models, Target
from openai_bls.pipeline.prepare import WriterT, prepare
from openai_bls.pipeline.readiness import Readiness
from openai_bls.pipeline.sequence import Writer
from openai_bls.pipeline.task_calls import TaskCall
from openai_bls.pipeline.task_models import TaskModel
from openai_bls.transport.model_calls import ModelCalls

T = TypeVar("T")


class AnswerWriter(Writer, Protocol[T]):
    """A writer that makes one whole answer."""

    @property
    def answer(self) -> asyncio.Future[T]:
        """Resolved at the end, by the answer or an error."""
        ...


class StreamWriter(Writer, Protocol):
    """A writer that streams."""

    def recorded(self) -> tuple[Writer, Callable[[Usage], Any]]:
        """The writer to use in its place where the answer is wanted as a whole too, and what makes that at the end."""
        ...


StreamWriterT = TypeVar("StreamWriterT", bound=StreamWriter)


class Service:
    """Answers requests. One for each `openai_bls` instance; every method belongs to the event loop's thread.

    Args:
        models: that are served.
        settings: of the model `openai_bls`.
        model_calls: calls of other models of this server.
        on_busy: called with the number of requests in progress whenever it changes.
        api_keys: of which requests must have one; None is those of the settings.
    """

    def __init__(
        self,
        models: Models,
        settings: OpenAiBlsSettings,
        model_calls: ModelCalls,
        on_busy: Callable[[int], None] = lambda busy: None,
        api_keys: ApiKeys | None = None,
    ) -> None:
        self.models = models
        self.settings = settings
        self.model_calls = model_calls
        self.api_keys = ApiKeys.of(settings) if api_keys is None else api_keys
        self.chat_models = ChatModels(model_calls, settings.chat_models_timeout_s)
        self._on_busy = on_busy
        self.readiness = Readiness()
        """States of the models behind this one."""
        self.metrics = Metrics(self)
        self.on_end: Callable[[RequestRecord], None] = self.metrics.ended
        """Called once for each admitted request, when it ends."""
        self.on_refused: Callable[[str, ApiError], None] = self.metrics.refused
        """Called with the endpoint's name and the error of each request that is answered with one."""
        self._in_progress = 0
        self.draining = False
        self.guards = Guards(self) if settings.guard_before or settings.guard_after else None
        """None if requests are not guarded."""

    @property
    def in_progress(self) -> int:
        """Requests that are being prepared or generated."""
        return self._in_progress

    async def health(self) -> str:
        """State: "ok", or the reason why requests are not answered, or soon will not be.

        An engine that has failed stays so until it is loaded again, and a model that has died or does not answer
        until it does, whatever others do. One that is not loaded is missed only where it was the last: a model may be
        unloaded on purpose.
        """
        if self.draining:
            return "draining"
        if any(model.failed for model in self.models):
            return "engine failed"
        connected = any(model.connected for model in self.models)
        # A connection that is lost is known at once, and by a check whether the model has died.
        await self.readiness.check(anew=not connected)
        if self.readiness.problem is not None:
            return self.readiness.problem
        if not any(model.engine.connected for model in self.models):
            return "engine not loaded"
        return "ok" if connected else "preprocessing not loaded"

    async def complete(self, request: ValidRequest, make_writer: Callable[[Target], AnswerWriter[T]]) -> T:
        """The whole answer to a request. Cancelling this coroutine cancels the generation.

        Raises:
            ApiError: it cannot be honoured, or the engine failed.
        """
        generation, writer = await self._prepare(request, make_writer)
        try:
            generation.start()
            return await writer.answer
        finally:
            generation.cancel()

    async def begin(self, request: ValidRequest, make_writer: Callable[[Target], StreamWriter]) -> Generation:
        """Begin a streamed answer; returns once the engine has the request.

        Raises:
            ApiError: it cannot be honoured; the writer has not been called.
        """
        generation, _ = await self.prepare(request, make_writer)
        try:
            generation.start()
        except BaseException:
            generation.cancel()
            raise
        return generation

    async def prepare(
        self, request: ValidRequest, make_writer: Callable[[Target], StreamWriterT]
    ) -> tuple[Generation, StreamWriterT]:
        """A generation that is still to be started, and its writer; see `pipeline.prepare`.

        Raises:
            ApiError: the request cannot be honoured; the writer has not been called.
        """
        guarded = guarded_request.get()
        if guarded is None or not guarded.wants_answers:
            return await self._prepare(request, make_writer)
        made: list[StreamWriterT] = []

        def make_recorded(target: Target) -> Writer:
            made.append(make_writer(target))
            writer, make_answer = made[0].recorded()
            guarded.streams(make_answer)
            return writer

        generation, _ = await self._prepare(request, make_recorded)
        return generation, made[0]

    async def _prepare(
        self, request: ValidRequest, make_writer: Callable[[Target], WriterT]
    ) -> tuple[Generation, WriterT]:
        await self.models.look_for(request.model)
        target = self.models.find(request.model)
        self.check_admission()
        record = self.recorder(request.endpoint, target.name)
        self.count(1)
        try:
            writer, sequences, prompts = await prepare(request, target, self.settings, make_writer)
        except BaseException:
            self.count(-1)
            raise

        def ended(generation: Generation, outcome: Outcome) -> None:
            self.count(-1)
            record(outcome, generation.finish_reasons, generation.usage, generation.first_token_at)

        prompt_tokens = [len(prompt) for prompt in prompts.token_ids]
        return Generation(target.model.engine, sequences, writer, prompt_tokens, ended), writer

    def recorder(self, endpoint: str, model: str) -> Callable[[Outcome, list[FinishReason], Usage, float | None], None]:
        """Recorder of the request that this task answers, which begins now; to be called once, when it has ended.

        Args:
            endpoint: its name in the metrics.
            model: that it is for, as the metrics call it.
        """
        guarded, key = guarded_request.get(), key_name.get()
        began_at = time.monotonic() if guarded is None else guarded.began_at

        def ended(
            outcome: Outcome, finish_reasons: list[FinishReason], usage: Usage, first_token_at: float | None
        ) -> None:
            record = RequestRecord(
                endpoint=endpoint,
                model=model,
                outcome=outcome,
                finish_reasons=finish_reasons,
                usage=usage,
                began_at=began_at,
                first_token_at=first_token_at,
                ended_at=time.monotonic(),
                key=key,
            )
            self.on_end(record)
            if guarded is not None:
                guarded.ended(record)

        return ended

    def task_call(self, model: TaskModel) -> TaskCall:
        """One request's calls of a task model; its deadline begins now."""
        return TaskCall(self.model_calls, model, self.settings.task_models_timeout_s)

    def check_admission(self) -> None:
        """Refuse a request that is one too many.

        Raises:
            OverloadedError: the server is draining, or full.
        """
        # A chat model that is at work may need the answer.
        if self.draining and not self.chat_models.in_progress:
            raise OverloadedError("The server is shutting down.")
        if self._in_progress >= self.settings.max_concurrent_requests:
            raise OverloadedError(
                f"The server has {self._in_progress} requests in progress, its maximum; try again later."
            )

    def count(self, change: int) -> None:
        """Change the number of requests in progress."""
        self._in_progress += change
        self.metrics.set_in_progress(self._in_progress)
        self._on_busy(self._in_progress)
