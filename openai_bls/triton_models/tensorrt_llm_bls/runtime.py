"""Runtime of one `tensorrt_llm_bls` instance: an event loop with the clients of the engine and of preprocessing.

Threads: Triton's calls `accept`, which returns at once; the event loop's does all the work; a few send responses to
Triton.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import uvloop

from openai_bls.core.engine_types import EngineInfo
from openai_bls.core.errors import ApiError, InvalidRequestError, OverloadedError
from openai_bls.core.keys.api_keys import ApiKeys
from openai_bls.core.request import checked_timeout
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.output.detokenizer import factory
from openai_bls.output.stops import StopStrings, check_reachable
from openai_bls.pipeline.admission.admission import Admission
from openai_bls.pipeline.admission.key_budgets import KeyBudgets
from openai_bls.pipeline.generation.echo import Echo, EchoingSequence
from openai_bls.pipeline.generation.generation import Generation, admitted_generation
from openai_bls.pipeline.generation.sequence import Sequence
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.lifecycle.life import Life
from openai_bls.pipeline.lifecycle.removed_keys import RemovedKeys
from openai_bls.pipeline.observation.observer import Observer
from openai_bls.pipeline.service import within
from openai_bls.pipeline.slices import Turns
from openai_bls.transport.ipc.client import ExchangeClient
from openai_bls.transport.ipc.sockets import address
from openai_bls.triton_models.bls.calls import BlockingCall, BlsCalls
from openai_bls.triton_models.bls.preprocessing_model import PreprocessingModel
from openai_bls.triton_models.bls.prompt_client import prompt_client
from openai_bls.triton_models.endpoint import request_keys
from openai_bls.triton_models.endpoint.envelope import answer_on_triton, triton_context
from openai_bls.triton_models.endpoint.response_sender import Reply, ResponseSender, SenderThreads
from openai_bls.triton_models.repository.engines import TENSORRT_LLM_BLS, Backend
from openai_bls.triton_models.tensorrt_llm_bls import requests
from openai_bls.triton_models.tensorrt_llm_bls.requests import TextRequest
from openai_bls.triton_models.tensorrt_llm_bls.responses import NOTHING, Outputs, TensorWriter
from openai_bls.triton_models.tensors.arrays import is_true

logger = logging.getLogger(__name__)

_SENDER_THREADS = OpenAiBlsSettings().sender_threads
_PREPROCESSING_TIMEOUT_S = OpenAiBlsSettings().preprocessing_timeout_s
# In the log and in traces; the metrics are of openai_bls alone.
_ENDPOINT = "text_input"
# Seconds a request waits for an engine that is still loading.
_ENGINE_WAIT_S = 30.0


class _Running:
    """Answer that a stop request can end.

    Args:
        generation: generation of the answer.
        sequences: sequences of the generation.
        writer: writer of the sequences.
    """

    def __init__(self, generation: Generation, sequences: list[Sequence], writer: TensorWriter) -> None:
        self._generation = generation
        self._sequences = sequences
        self._writer = writer

    def cancel(self) -> None:
        """Stop the engine's work: the client has gone."""
        self._generation.cancel()

    def stop(self) -> None:
        """End the answer with what there is."""
        self._generation.cancel()
        self._writer.stopped(self._sequences)


class Runtime:
    """One `tensorrt_llm_bls` instance.

    Args:
        backend: models of the default engine.
        owner: process id of the tritonserver.
        call_model: makes a BLS call, for a `preprocessing` that is not ours.
        exclude_input_default: whether whole answers leave the prompt out, for requests that do not say.
        decoupled: a request may have any number of responses, else one.
        limits: settings of `openai_bls`, whose limits hold here too.
        api_keys: API keys, for their limits.
        instances: number of `tensorrt_llm_bls` instances in this server.
        observer: observer that learns of each request and is closed in the end; None is none.

    Raises:
        OSError: the tokenizer cannot be read.
        ValueError: the tokenizer is not one, or `preprocessing` cannot be called.
    """

    def __init__(
        self,
        backend: Backend,
        owner: int,
        call_model: BlockingCall,
        *,
        exclude_input_default: bool,
        decoupled: bool,
        limits: OpenAiBlsSettings,
        api_keys: ApiKeys,
        instances: int = 1,
        observer: Observer | None = None,
    ) -> None:
        self._backend = backend
        self._owner = owner
        self._detokenizers = factory.load(backend.tokenizer_dir)
        by_bls = backend.prompt_transport == "bls"
        self._preprocessing = PreprocessingModel(backend.preprocessing_dir) if by_bls else None
        self._exclude_input_default = exclude_input_default
        self._decoupled = decoupled
        self._budgets = KeyBudgets(api_keys.limits)
        self._admission = Admission(
            lambda: self._info.result().max_batch_size,
            limits,
            api_keys.limits,
            lambda: self._client.stats,
            instances,
        )
        # Keys that this thread reads again: those given are of the thread that asks requests for theirs.
        self._removed_keys = RemovedKeys(ApiKeys.of(limits) if api_keys.required else api_keys)
        self._observer = observer or Observer()
        self._loop = uvloop.new_event_loop()
        self._turns = Turns()
        self._senders = SenderThreads(_SENDER_THREADS, self._loop)
        self._model_calls = BlsCalls(self._loop, call_model)
        # By the ids that clients gave; an answer that has ended goes by itself.
        self._running: WeakValueDictionary[str, _Running] = WeakValueDictionary()
        self._info: asyncio.Future[EngineInfo] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="tensorrt-llm-bls", daemon=True)

    def start(self) -> None:
        """Start the event loop; requests are taken from now on, and answered once the engine is there."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._connect(), self._loop).result()

    def accept(
        self,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        reply: Reply[Outputs],
        parameters: Mapping[str, Any] | None = None,
        key: str = "",
        timeout: object = None,
        outputs: frozenset[str] = frozenset(),
    ) -> None:
        """Take a request; returns at once. From any thread.

        Args:
            arrays: the input tensors by name, which need not live longer than this call.
            reply: reply to the request.
            parameters: parameters of the request.
            key: name of the API key that it came with.
            timeout: seconds in which it must be answered, as they were given; None if they were not.
            outputs: names of the outputs to send: all where the client names none.
        """
        copies = {name: array.copy() for name, array in arrays.items()}
        answer = functools.partial(self._answer, copies, parameters or {}, key, timeout, outputs)
        self._loop.call_soon_threadsafe(self._senders.answer, reply, answer)

    def refuse(self, error: ApiError, reply: Reply[Outputs], parameters: Mapping[str, Any]) -> None:
        """Answer a request with an error; returns at once. From any thread."""

        async def fail() -> None:
            raise error

        async def answer(sender: ResponseSender[Outputs]) -> None:
            await self._enveloped(self._context(parameters), fail(), sender)

        self._loop.call_soon_threadsafe(self._senders.answer, reply, answer)

    def probe(self) -> None:
        """Have the event loop take a turn; returns once it has. From any other thread, between `start` and `close`."""
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result()

    def close(self) -> None:
        """End what runs with an error, free the threads."""
        try:
            asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._senders.close()
        self._observer.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _connect(self) -> None:
        self._watching = self._loop.create_task(self._removed_keys.watch())
        self._client = ExchangeClient(address(self._backend.engine, self._owner), self._on_engine)
        self._prompts = prompt_client(
            self._backend,
            self._preprocessing,
            self._owner,
            self._model_calls,
            _PREPROCESSING_TIMEOUT_S,
            lambda: self._info.result().vocab_size,
        )

    def _on_engine(self, info: EngineInfo) -> None:
        if self._info.done():
            # Another one after a reload, or its adapters have changed.
            self._info = self._loop.create_future()
        self._info.set_result(info)

    async def _answer(
        self,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        parameters: Mapping[str, Any],
        key: str,
        timeout: object,
        outputs: frozenset[str],
        sender: ResponseSender[Outputs],
    ) -> None:
        context = self._context(parameters)
        context.key = key
        work = self._answer_or_raise(context, arrays, parameters, timeout, outputs, sender)
        await self._enveloped(context, work, sender)

    def _context(self, parameters: Mapping[str, Any]) -> RequestContext:
        context = triton_context(self._observer, TENSORRT_LLM_BLS, parameters)
        context.endpoint = _ENDPOINT
        return context

    async def _enveloped(self, context: RequestContext, work: Awaitable[None], sender: ResponseSender[Outputs]) -> None:
        def refuse(error: ApiError) -> None:
            context.error = error
            sender.fail(error)

        await answer_on_triton(context, work, refuse, sender.fail, lambda: False)

    async def _answer_or_raise(
        self,
        context: RequestContext,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        parameters: Mapping[str, Any],
        timeout: object,
        outputs: frozenset[str],
        sender: ResponseSender[Outputs],
    ) -> None:
        if is_true(arrays, "stop"):
            self._stop(request_keys.request_id(parameters), sender)
            return
        context.timeout_s = request_keys.timeout_s(parameters)
        timeout_s = None if timeout is None else checked_timeout(timeout, "timeout")
        deadline = context.deadline(timeout_s, time.monotonic())
        self._admission.check(context.key, deadline)
        with Life(context, self._budgets.enter(context.key), lives=self._removed_keys.lives) as life:
            request = await within(deadline, self._parsed(arrays, outputs, context.key))
            writer = TensorWriter(request, sender)
            sequences = self._sequences(request, writer, context.key)
            prompt_tokens = [len(prompt) for prompt in request.official.prompts]
            generation = admitted_generation(
                life,
                self._admission,
                self._info.result().model_name,
                self._client,
                sequences,
                writer,
                prompt_tokens,
                deadline,
            )
        running = _Running(generation, sequences, writer)
        sender.when_cancelled(running.cancel)
        given_id = request_keys.request_id(parameters)
        if given_id:
            self._running[given_id] = running
        generation.start()

    def _stop(self, given_id: str, sender: ResponseSender[Outputs]) -> None:
        """End the running answer of this id; an id that is not live is no error."""
        if not given_id:
            raise InvalidRequestError(request_keys.STOP_WITHOUT_ID, param="stop")
        running = self._running.pop(given_id, None)
        if running is not None:
            running.stop()
        sender.answer(NOTHING)

    async def _engine_info(self) -> EngineInfo:
        """The engine's info, as soon as it is there."""
        if not self._info.done():
            # Cancelling this leaves it as it is.
            await asyncio.wait([self._info], timeout=_ENGINE_WAIT_S)
        if not self._info.done():
            raise OverloadedError("The engine is not loaded (yet); try again later.")
        await self._client.ready()
        return self._info.result()

    async def _parsed(
        self, arrays: Mapping[str, np.ndarray[Any, Any]], outputs: frozenset[str], key: str
    ) -> TextRequest:
        info = await self._engine_info()
        request = await requests.parse(arrays, info, self._prompts, self._exclude_input_default, outputs, key)
        if not self._decoupled:
            requests.require_one_response(request)
        ends = request.official.template.stop_token_ids
        check_reachable(request.stop, self._detokenizers.special, ends, request.stop_param, "'end_id': -1")
        return request

    def _sequences(self, request: TextRequest, writer: TensorWriter, key: str) -> list[Sequence]:
        official = request.official
        stops = StopStrings(
            request.stop,
            self._detokenizers,
            include_stop_str_in_output=request.include_stop,
            param=request.stop_param,
        )
        sequences: list[Sequence] = []
        for row, prompt in enumerate(official.prompts):
            kind: Callable[..., Sequence] = Sequence
            if not (official.streaming or official.exclude_input):
                echo = Echo(prompt, self._detokenizers.new(), functools.partial(self._turns.take, key=key))
                kind = functools.partial(EchoingSequence, echo=echo)
            for index in range(official.return_sequences):
                sequence = kind(
                    len(sequences),
                    official.engine_request(self._client.new_request_id(), row, index),
                    stops.detokenizer(prompt),
                    writer,
                    stops=stops.matcher(),
                    marks=stops.marks,
                )
                sequences.append(sequence)
        return sequences

    async def _shut_down(self) -> None:
        self._watching.cancel()
        self._admission.close(OverloadedError("The server is shutting down."))
        await self._client.close()
        await self._prompts.close()
        self._model_calls.close()
        # Requests that wait for preprocessing or for the engine to load end with an error.
        await self._senders.cancel_answers()
