"""Service shared by all APIs: admission, preparation and generation of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, TypeVar

from openai_bls.core.errors import (
    ApiError,
    OverloadedError,
    PermissionDeniedError,
    RateLimitError,
    RequestDeadlineError,
)
from openai_bls.core.keys.api_keys import ApiKeys
from openai_bls.core.keys.in_flight import InFlight
from openai_bls.core.media import Image, ImageSource
from openai_bls.core.request import Deadline, ValidRequest
from openai_bls.core.request_record import RequestRecord
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.core.usage import Usage
from openai_bls.pipeline.admission.admission import Admission
from openai_bls.pipeline.admission.key_budgets import KeyBudgets
from openai_bls.pipeline.generation.collector import Collector
from openai_bls.pipeline.generation.generation import Generation, admitted_generation
from openai_bls.pipeline.generation.writer import Writer
from openai_bls.pipeline.guards.guards import Guards
from openai_bls.pipeline.lifecycle.answer_room import AnswerRoom
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.lifecycle.life import Life
from openai_bls.pipeline.lifecycle.removed_keys import RemovedKeys
from openai_bls.pipeline.media.audio.loader import AudioLoader
from openai_bls.pipeline.media.loader import ImageLoader
from openai_bls.pipeline.metrics.metrics import Metrics
from openai_bls.pipeline.models.readiness import Readiness
from openai_bls.pipeline.models.registry import Models, ServedModel, Target
from openai_bls.pipeline.observation.observer import Observer
from openai_bls.pipeline.preparation.prepare import WriterT, prepare
from openai_bls.pipeline.slices import Turns
from openai_bls.pipeline.task_models.calls import TaskCall
from openai_bls.pipeline.task_models.chat_models import ChatModels
from openai_bls.pipeline.task_models.registry import AnyTask, TaskModel
from openai_bls.transport.model_calls import ModelCalls
from openai_bls.transport.triton_http import TritonHttp

T = TypeVar("T")


class AnswerWriter(Writer, Protocol[T]):
    """A writer that makes one whole answer."""

    @property
    def answer(self) -> asyncio.Future[T]:
        """Resolved at the end, by the answer or an error."""


class StreamWriter(Writer, Protocol):
    """A writer that streams."""

    def recorded(self) -> tuple[Writer, Callable[[Usage], Any]]:
        """The writer to use in its place where the answer is wanted as a whole too, and what makes that at the end."""


StreamWriterT = TypeVar("StreamWriterT", bound=StreamWriter)


def _param(request: ValidRequest) -> str:
    """The field of a request that makes its answer large."""
    if request.logprobs is not None:
        return "top_logprobs" if request.chat else "logprobs"
    return "n" if request.candidates > 1 else "max_tokens"


async def within(deadline: Deadline | None, work: Awaitable[T]) -> T:
    """Result of `work`, which is cancelled at the deadline, if there is one.

    Raises:
        RequestDeadlineError: it has not ended by then.
    """
    if deadline is None:
        return await work
    # Not wait_for: up to Python 3.11 it forgets that it was cancelled when the result comes just then, and from 3.12 on
    # it drops a result that comes just at the deadline.
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=deadline.left_s)
        if task.done():
            return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    raise RequestDeadlineError(deadline.timeout_s, waited=True)


class Service:
    """Answers requests. One for each `openai_bls` instance; every method belongs to the event loop's thread.

    Args:
        models: models that are served.
        settings: settings of the model `openai_bls`.
        model_calls: calls of other models of this server.
        on_busy: called with the number of requests in progress whenever it changes.
        api_keys: keys of which requests must have one; None takes those of the settings.
        instances: number of `openai_bls` instances that share the engines.
        observer: observer that learns of each request; None is none.
        front_end: HTTP front end of the tritonserver around this model; None where there is none.
    """

    def __init__(
        self,
        models: Models,
        settings: OpenAiBlsSettings,
        model_calls: ModelCalls,
        on_busy: Callable[[int], None] = lambda busy: None,
        api_keys: ApiKeys | None = None,
        instances: int = 1,
        observer: Observer | None = None,
        front_end: TritonHttp | None = None,
    ) -> None:
        self.front_end = front_end
        self.models = models
        self.settings = settings
        self.model_calls = model_calls
        self.api_keys = ApiKeys.of(settings) if api_keys is None else api_keys
        self.budgets = KeyBudgets(self.api_keys.limits)
        """Budgets that the requests of each API key may still take."""
        self.removed_keys = RemovedKeys(self.api_keys)
        """End of the requests whose key was taken out; `watch` is for the owner of the event loop to run."""
        self.images = ImageLoader(settings, several=lambda: self.api_keys.several)
        """Loader of the requests' images."""
        self.audio = AudioLoader(settings, several=lambda: self.api_keys.several)
        """Loader of the requests' audio."""
        self._admissions: dict[ServedModel, Admission] = {}
        self._instances = instances
        self._turns = Turns()
        self._answers = AnswerRoom(settings.max_body_bytes_in_flight)
        self.observer = observer or Observer()
        self.chat_models = ChatModels(model_calls, settings.chat_models_timeout_s)
        self._on_busy = on_busy
        self.readiness = Readiness()
        """States of the models behind this one."""
        self.metrics = Metrics(self)
        self.on_end: Callable[[RequestRecord], None] = self.metrics.ended
        """Called once for each admitted request, when it ends."""
        self.on_refused: Callable[[str, ApiError, str], None] = self.metrics.refused
        """Called with the endpoint's name, the error and the key's name of each refused request."""
        self._in_progress = InFlight(settings.max_concurrent_requests, lambda: self.api_keys.several)
        self.draining = False
        self.guards = Guards(self) if settings.guard_before or settings.guard_after else None
        """Guards of the requests; None if requests are not guarded."""

    @property
    def in_progress(self) -> int:
        """Requests that are being prepared or generated."""
        return self._in_progress.held

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
        await self.readiness.check(force=not connected)
        if self.readiness.problem is not None:
            return self.readiness.problem
        if not any(model.engine.connected for model in self.models):
            return "engine not loaded"
        return "ok" if connected else "preprocessing not loaded"

    async def complete(
        self, context: RequestContext, request: ValidRequest, target: Target, make_writer: Callable[[], AnswerWriter[T]]
    ) -> T:
        """The whole answer to a request. Cancelling this coroutine cancels the generation.

        Raises:
            ApiError: it cannot be honoured, or the engine failed.
        """
        generation, writer = await self.start(context, request, target, make_writer)
        try:
            return await writer.answer
        finally:
            generation.cancel()

    async def start(
        self, context: RequestContext, request: ValidRequest, target: Target, make_writer: Callable[[], WriterT]
    ) -> tuple[Generation, WriterT]:
        """A started generation, and its writer, whose whole answer the caller waits for, or cancels.

        Raises:
            ApiError: it cannot be honoured.
        """
        generation, writer = await self._prepare(context, request, target, make_writer)
        generation.start()
        return generation, writer

    async def begin(
        self, context: RequestContext, request: ValidRequest, target: Target, make_writer: Callable[[], StreamWriter]
    ) -> Generation:
        """Begin a streamed answer; returns once the engine has the request.

        Raises:
            ApiError: it cannot be honoured; the writer has not been called.
        """
        generation, _ = await self.prepare(context, request, target, make_writer)
        generation.start()
        return generation

    async def prepare(
        self, context: RequestContext, request: ValidRequest, target: Target, make_writer: Callable[[], StreamWriterT]
    ) -> tuple[Generation, StreamWriterT]:
        """A generation that is still to be started, and its writer; see `pipeline.preparation.prepare`.

        Raises:
            ApiError: the request cannot be honoured; the writer has not been called.
        """
        guarded = context.guarded
        if guarded is None or not guarded.wants_answers:
            return await self._prepare(context, request, target, make_writer)
        made: list[StreamWriterT] = []

        def make_recorded() -> Writer:
            made.append(make_writer())
            writer, make_answer = made[0].recorded()
            guarded.streams(make_answer)
            return writer

        generation, _ = await self._prepare(context, request, target, make_recorded)
        return generation, made[0]

    async def _prepare(
        self, context: RequestContext, request: ValidRequest, target: Target, make_writer: Callable[[], WriterT]
    ) -> tuple[Generation, WriterT]:
        target.model.require_task("generate")
        if not target.model.formats.takes_thinking_hints:
            context.ignored += request.thinking_params
        self.check_admission(context.key)
        began_at = context.work_began_at()
        deadline = context.deadline(request.timeout, began_at)
        admission = self.admission(target.model)
        # Before anything is done for it.
        room = target.model.info.max_model_len
        most = room if request.max_tokens is None else min(request.max_tokens, room)
        admission.check(context.key, deadline, max_tokens=most, priority=request.priority)
        with self.enter(context, began_at) as life:

            async def load(sources: tuple[ImageSource, ...]) -> tuple[Image, ...]:
                life.images = self.images.budget.lease(context.key)
                return await self.images.load(sources, context.key, life.images)

            work = prepare(request, target, self.settings, make_writer, load, context.key, self._turns)
            writer, sequences, prompts = await within(deadline, work)
            if isinstance(writer, Collector):
                life.answer = answer = self._answers.enter(life, _param(request))
                writer.count_by(answer.add)
            prompt_tokens = [len(prompt) for prompt in prompts.token_ids]
            engine = target.model.engine
            adapter = self.metrics.adapter_request(target.model.info.model_name, target.lora_name)
            generation = admitted_generation(
                life,
                admission,
                target.name,
                engine,
                sequences,
                writer,
                prompt_tokens,
                deadline,
                adapter,
                priority=request.priority,
            )
        return generation, writer

    def enter(self, context: RequestContext, began_at: float | None = None) -> Life:
        """A request that is in progress from now on.

        Args:
            context: context of the request.
            began_at: see `Life`.

        Raises:
            RateLimitError: it is one too many for its key.
        """
        lease = self.budgets.enter(context.key)
        count = partial(self.count, key=context.key)
        return Life(context, lease, count, self.on_end, began_at, self.removed_keys.lives)

    async def look_for(self, context: RequestContext, request: ValidRequest) -> Target:
        """The model or adapter that a request names, of which its context is told; see `Models.look_for`.

        Raises:
            ApiError: there is none.
        """
        context.asks(request)
        return self.target(context, request.model, await self.models.look_for(request.model))

    def target(self, context: RequestContext, name: str | None, found: Target | TaskModel | None) -> Target:
        """What was found under the name that a request has as its model or adapter, of which its context is told.

        Raises:
            ApiError: it is none.
        """
        context.model = name or ""
        target = self.models.target(name, found)
        context.model = target.name
        return target

    def while_key_lasts(self, key: str) -> AbstractContextManager[None]:
        """See `RemovedKeys.while_key_lasts`."""
        return self.removed_keys.while_key_lasts(key)

    def find(self, context: RequestContext, name: str | None) -> Target:
        """The model or adapter that a request names, noted in its context; see `Models.target`.

        Raises:
            ApiError: there is none.
        """
        return self.target(context, name, self.models.get(name))

    def require_admin(self, context: RequestContext) -> None:
        """Refuse what changes the server for all clients, unless the request's key may do that.

        Raises:
            PermissionDeniedError: it may not.
        """
        if not self.api_keys.is_admin(context.key):
            raise PermissionDeniedError(
                "This changes the server for all clients: it needs an API key with the role 'admin'."
            )

    async def find_task(self, context: RequestContext, name: str | None, *tasks: AnyTask) -> Target | TaskModel:
        """The engine or task model that a request names, noted in its context; see `Models.find_task`.

        Raises:
            ApiError: there is none, or none that can be used.
        """
        context.model = name or ""
        return await self.models.find_task(name, tasks)

    async def guarded_body(self, context: RequestContext, body: bytes) -> bytes:
        """The body of a request as the guard leaves it, noted in its context.

        Args:
            context: context of the request.
            body: JSON text of an object.

        Raises:
            RefusedByGuardError: the guard refuses the request.
            OverloadedError: the server takes no more, or the guard has failed.
        """
        assert self.guards is not None
        context.guarded = await self.guards.admit(context.endpoint, body, context.request_id, context.key)
        return context.guarded.body

    def admission(self, model: ServedModel) -> Admission:
        """Admission to the engine of a model."""
        admission = self._admissions.get(model)
        if admission is None:
            admission = self._admissions[model] = Admission(
                lambda: model.info.max_batch_size,
                self.settings,
                self.api_keys.limits,
                lambda: model.engine.stats,
                self._instances,
                self.metrics.queue_of(model.info.model_name),
                lambda: self.api_keys.several,
                step_tokens=lambda: model.info.max_num_tokens,
            )
        return admission

    def refused(self, context: RequestContext, error: ApiError) -> None:
        """Count a request that is answered with an error, and have its log line say so."""
        self.on_refused(context.endpoint, error, context.key)
        context.error = error

    def task_call(self, model: TaskModel, key: str, param: str, beside_s: float | None = None) -> TaskCall:
        """One request's calls of a task model; its deadline begins now.

        Args:
            model: task model without a fault.
            key: name of the request's API key.
            param: field of the request that the model's inputs are of.
            beside_s: timeout in seconds that came outside the request's body; None if none did, or it is kept already.
        """
        timeout_s = self.settings.task_models_timeout_s
        return TaskCall(self.model_calls, model, timeout_s, beside_s, key=key, param=param)

    def close(self) -> None:
        """End what waits for an engine, none of which will be there, and the decoders of images and audio."""
        self.images.close()
        self.audio.close()
        for admission in self._admissions.values():
            admission.close(OverloadedError("The server is shutting down."))

    def check_admission(self, key: str) -> None:
        """Refuse a request of an API key that is one too many.

        Raises:
            OverloadedError: the server is draining.
            RateLimitError: it is full, or the key has as many requests in progress as it leaves room for.
        """
        # A chat model that is at work may need the answer.
        if self.draining and not self.chat_models.in_progress:
            raise OverloadedError("The server is shutting down.")
        if not self._in_progress.has_room(key, 1):
            raise RateLimitError(
                f"The server has {self.in_progress} requests in progress, as many as it may, or as one API key may "
                "have of them.",
                reason="in_progress",
                retry_after_s=max((queue.wait_s(key) or 0.0 for queue in self._admissions.values()), default=0.0),
            )

    def count(self, change: int, key: str = "") -> None:
        """Change the number of requests in progress of an API key."""
        if change > 0:
            self._in_progress.take(key, change, free=True)
        else:
            self._in_progress.give_back(key, -change)
        self.metrics.set_in_progress(self.in_progress)
        self._on_busy(self.in_progress)
