"""Runtime of one `tensorrt_llm_bls` instance: an event loop with the clients of the engine and of preprocessing.

Threads: Triton's calls `submit`, which returns at once; the event loop's does all the work; a few send responses to
Triton.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import uvloop

from openai_bls.core.engine_types import EngineInfo
from openai_bls.core.errors import ApiError, EngineError, OverloadedError
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.output.detokenizer import factory
from openai_bls.output.stop_strings import StopMatcher
from openai_bls.pipeline.generation import Generation
from openai_bls.pipeline.sequence import Echo, Sequence
from openai_bls.transport.ipc.client import ExchangeClient
from openai_bls.transport.ipc.frames import address
from openai_bls.triton_models.openai_bls.bls import BlockingCall, BlsCalls
from openai_bls.triton_models.openai_bls.engine_connection import prompt_client
from openai_bls.triton_models.openai_bls.preprocessing_model import PreprocessingModel
from openai_bls.triton_models.openai_bls.response_sender import Reply, ResponseSender, SenderThreads
from openai_bls.triton_models.repository import Backend
from openai_bls.triton_models.tensorrt_llm_bls import requests
from openai_bls.triton_models.tensorrt_llm_bls.requests import TextRequest
from openai_bls.triton_models.tensorrt_llm_bls.responses import Outputs, TensorWriter

logger = logging.getLogger(__name__)

_SENDER_THREADS = OpenAiBlsSettings().sender_threads
_PREPROCESSING_TIMEOUT_S = OpenAiBlsSettings().preprocessing_timeout_s
# Seconds a request waits for an engine that is still loading.
_ENGINE_WAIT_S = 30.0


class Runtime:
    """One `tensorrt_llm_bls` instance.

    Args:
        backend: of the default engine.
        owner: process id of the tritonserver.
        call_model: makes a BLS call, for a `preprocessing` that is not ours.
        exclude_input_default: leave the prompt out of whole answers to requests that do not say.
        decoupled: a request may have any number of responses, else one.

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
    ) -> None:
        self._backend = backend
        self._owner = owner
        self._detokenizers = factory.load(backend.tokenizer_dir)
        by_bls = backend.prompt_transport == "bls"
        self._preprocessing = PreprocessingModel(backend.preprocessing_dir) if by_bls else None
        self._exclude_input_default = exclude_input_default
        self._decoupled = decoupled
        self._loop = uvloop.new_event_loop()
        self._senders = SenderThreads(_SENDER_THREADS, self._loop)
        self._model_calls = BlsCalls(self._loop, call_model)
        self._info: asyncio.Future[EngineInfo] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="tensorrt-llm-bls", daemon=True)

    def start(self) -> None:
        """Start the event loop; requests are taken from now on, and answered once the engine is there."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._connect(), self._loop).result()

    def submit(self, arrays: Mapping[str, np.ndarray[Any, Any]], reply: Reply[Outputs]) -> None:
        """Take a request; returns at once. From any thread.

        Args:
            arrays: the input tensors by name, which need not live longer than this call.
            reply: of the request.
        """
        copies = {name: array.copy() for name, array in arrays.items()}
        self._loop.call_soon_threadsafe(self._take, copies, reply)

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

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _connect(self) -> None:
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

    def _take(self, arrays: Mapping[str, np.ndarray[Any, Any]], reply: Reply[Outputs]) -> None:
        self._senders.answer(reply, functools.partial(self._answer, arrays))

    async def _answer(self, arrays: Mapping[str, np.ndarray[Any, Any]], sender: ResponseSender[Outputs]) -> None:
        try:
            request = await requests.parse(
                arrays, await self._engine_info(), self._prompts, self._exclude_input_default
            )
            if not self._decoupled:
                requests.require_one_response(request)
            generation = self._generation(request, sender)
            sender.when_cancelled(generation.cancel)
            generation.start()
        except ApiError as error:
            sender.fail(error)
        except asyncio.CancelledError:
            # If it was the client that has gone, this is not sent any more.
            sender.fail(OverloadedError("The server is shutting down."))
        except Exception:
            logger.exception("a request failed")
            sender.fail(EngineError("The server had an error; see its log."))

    async def _engine_info(self) -> EngineInfo:
        """The engine's info, as soon as it is there."""
        if not self._info.done():
            # Cancelling this leaves it as it is.
            await asyncio.wait([self._info], timeout=_ENGINE_WAIT_S)
        if not self._info.done():
            raise OverloadedError("The engine is not loaded (yet); try again later.")
        await self._client.ready()
        return self._info.result()

    def _generation(self, request: TextRequest, sender: ResponseSender[Outputs]) -> Generation:
        official, writer = request.official, TensorWriter(request, sender)
        sequences: list[Sequence] = []
        for row, prompt in enumerate(official.prompts):
            echo = None
            if not (official.streaming or official.exclude_input):
                echo = Echo.decoded(prompt, self._detokenizers.new())
            for index in range(official.return_sequences):
                sequence = Sequence(
                    len(sequences),
                    official.engine_request(self._client.new_request_id(), row, index),
                    self._detokenizers.new(prompt_token_ids=prompt),
                    writer,
                    stops=StopMatcher(request.stop, request.include_stop) if request.stop else None,
                    echo=echo,
                )
                sequences.append(sequence)
        prompt_tokens = [len(prompt) for prompt in official.prompts]
        return Generation(self._client, sequences, writer, prompt_tokens, lambda generation, outcome: None)

    async def _shut_down(self) -> None:
        await self._client.close()
        await self._prompts.close()
        self._model_calls.close()
        # Requests that wait for preprocessing or for the engine to load end with an error.
        await self._senders.cancel_answers()
