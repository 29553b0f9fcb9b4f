"""The pipeline that /v1 and Triton's endpoints share: request → prompt token ids → the engine → an answer."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from openai_bls.errors import InvalidRequestError, ModelNotFoundError, OverloadedError
from openai_bls.generation import EngineClient, Generation, Sequence, Writer
from openai_bls.messages import (
    EngineInfo,
    GenerationRequest,
    PromptRequest,
    PromptResult,
    SamplingParams,
)
from openai_bls.protocol.requests import ValidRequest
from openai_bls.protocol.responses import Answer, ChunkEncoder, new_id
from openai_bls.settings import OpenAiBlsSettings
from openai_bls.text.detokenizer import DetokenizerFactory
from openai_bls.text.stops import StopMatcher
from openai_bls.text.tools import ToolCallParser
from openai_bls.writers import AnswerWriter, Sink, StreamWriter


class PromptClient(Protocol):
    """The way to preprocessing."""

    async def prepare(self, request: PromptRequest) -> PromptResult:
        """Token ids for `request`; raises EngineError if preprocessing cannot be reached."""
        ...


class Service:
    """Answers requests. One for each `openai_bls` instance; every method belongs to the event loop's thread.

    Args:
        info: the engine's.
        settings: the model's.
        engine: the way to the engine.
        prompts: the way to preprocessing.
        detokenizers: for the engine's tokenizer.
        on_busy: called with the number of requests in progress whenever it changes.
    """

    def __init__(
        self,
        info: EngineInfo,
        settings: OpenAiBlsSettings,
        engine: EngineClient,
        prompts: PromptClient,
        detokenizers: DetokenizerFactory,
        on_busy: Callable[[int], None] = lambda busy: None,
    ) -> None:
        self.settings = settings
        self._engine = engine
        self._prompts = prompts
        self._detokenizers = detokenizers
        self._on_busy = on_busy
        self._in_progress = 0
        self.draining = False
        self.use_engine(info)

    def use_engine(self, info: EngineInfo) -> None:
        """Serve the engine that `info` describes from now on: after a reload it may be another one."""
        self.info = info
        self.model_names = tuple(dict.fromkeys((info.model_name, *self.settings.aliases)))
        # Clients may compare it to see that the backend has changed.
        self.fingerprint = "fp_" + hashlib.sha256(msgspec.json.encode(info)).hexdigest()[:10]

    @property
    def in_progress(self) -> int:
        """Requests that are being prepared or generated."""
        return self._in_progress

    def model_card(self, name: str) -> dict[str, Any]:
        """The model object of /v1/models.

        Raises:
            ModelNotFoundError: no model of that name is served.
        """
        self._check_model(name)
        return {
            "id": name,
            "object": "model",
            "created": self.info.created,
            "owned_by": "openai_bls",
            "max_model_len": self.info.max_model_len,
        }

    async def answer(self, request: ValidRequest) -> Answer:
        """The whole answer to a request that is not streamed. Cancelling this coroutine cancels the generation.

        Raises:
            ApiError: it cannot be honoured, or the engine failed.
        """
        choices = self._admit(request)
        writer = AnswerWriter(**self._constants(request), choices=choices)
        generation = await self._begin(request, writer)
        try:
            generation.start()
            return await writer.answer
        finally:
            generation.cancel()

    async def stream(self, request: ValidRequest, sink: Sink) -> Generation:
        """Begin a streamed answer into `sink`; returns once it has begun, the rest comes by itself.

        Raises:
            ApiError: it cannot be honoured; nothing has been written to the sink.
        """
        choices = self._admit(request)
        encoder = ChunkEncoder(
            **self._constants(request), choices=choices, usage_null=request.include_usage, sse=sink.sse
        )
        writer = StreamWriter(
            encoder,
            sink,
            chat=request.endpoint == "chat.completions",
            include_usage=request.include_usage,
            choices=choices,
        )
        generation = await self._begin(request, writer)
        if request.continuous_usage_stats:
            writer.usage = lambda: generation.usage
        try:
            if sink.opens_at_once:
                writer.open()
            generation.start()
        except BaseException:
            generation.cancel()
            raise
        return generation

    def _constants(self, request: ValidRequest) -> dict[str, Any]:
        chat = request.endpoint == "chat.completions"
        return {
            "chat": chat,
            "response_id": new_id("chatcmpl" if chat else "cmpl"),
            "created": int(time.time()),
            "model": request.model or self.info.model_name,
            "fingerprint": self.fingerprint,
        }

    def _check_model(self, name: str) -> None:
        if name not in self.model_names:
            raise ModelNotFoundError(
                f"The model {name!r} does not exist; served here: {', '.join(self.model_names)}.",
                param="model",
            )

    def _admit(self, request: ValidRequest) -> int:
        """The number of choices, if the request can be taken at all; before anything is made for each of them."""
        if request.model is not None:
            self._check_model(request.model)
        choices = request.prompt_count * request.n
        if choices > self.settings.max_choices:
            raise InvalidRequestError(
                f"The request asks for {choices} sequences; at most {self.settings.max_choices} are supported.",
                param="n",
            )
        if self.draining:
            raise OverloadedError("The server is shutting down.")
        if self._in_progress >= self.settings.max_concurrent_requests:
            raise OverloadedError(
                f"The server has {self._in_progress} requests in progress, its maximum; try again later."
            )
        return choices

    async def _begin(self, request: ValidRequest, writer: Writer) -> Generation:
        """Everything before the engine: the prompt, its length, the sequences."""
        self._count(1)
        try:
            await self._engine.ready()
            prompts = await self._prompt_token_ids(request)
            sequences = [
                self._sequence(request, writer, index, prompts[index // request.n])
                for index in range(len(prompts) * request.n)
            ]
            if request.echo:
                self._echo(request, sequences, prompts, writer)
        except BaseException:
            self._count(-1)
            raise
        return Generation(
            self._engine,
            sequences,
            writer,
            sum(len(prompt) for prompt in prompts),
            on_end=lambda: self._count(-1),
        )

    def _count(self, change: int) -> None:
        self._in_progress += change
        self._on_busy(self._in_progress)

    async def _prompt_token_ids(self, request: ValidRequest) -> list[list[int]]:
        if request.prompt is None:
            self._check_token_ids(request.prompt_token_ids)
            prompts = request.prompt_token_ids
        else:
            result = await self._prompts.prepare(request.prompt)
            if result.error is not None:
                raise InvalidRequestError(result.error, param=result.param)
            prompts = result.prompt_token_ids
        for prompt in prompts:
            self._check_length(request, prompt)
        return prompts

    def _check_token_ids(self, prompts: list[list[int]]) -> None:
        for prompt in prompts:
            if prompt and max(prompt) >= self.info.vocab_size:
                raise InvalidRequestError(
                    f"'prompt' holds the token id {max(prompt)}; the vocabulary has {self.info.vocab_size}.",
                    param="prompt",
                )

    def _check_length(self, request: ValidRequest, prompt: list[int]) -> None:
        param = "messages" if request.endpoint == "chat.completions" else "prompt"
        if not prompt:
            raise InvalidRequestError(f"'{param}' gives an empty prompt.", param=param)
        limit = self.info.max_model_len
        # At least one token must have room.
        wanted = len(prompt) + (request.max_tokens or 1)
        if wanted > limit:
            tail = f" and {request.max_tokens} of output" if request.max_tokens else ""
            raise InvalidRequestError(
                f"This model's maximum context length is {limit} tokens; the request has "
                f"{len(prompt)} of prompt{tail}. Shorten the prompt or ask for less output.",
                param=param,
                code="context_length_exceeded",
            )

    def _sequence(self, request: ValidRequest, writer: Writer, index: int, prompt: list[int]) -> Sequence:
        stop_token_ids = dict.fromkeys(request.stop_token_ids)
        if not request.ignore_eos:
            stop_token_ids.update(dict.fromkeys(self.info.eos_token_ids))
        room = self.info.max_model_len - len(prompt)
        generation_request = GenerationRequest(
            request_id=self._engine.new_request_id(),
            prompt_token_ids=prompt,
            max_tokens=request.max_tokens or min(room, request.default_max_tokens or room),
            sampling=self._sampling(request, index),
            stop_token_ids=tuple(stop_token_ids),
        )
        stops = None
        if request.stop:
            stops = StopMatcher(request.stop, include_stop_str_in_output=request.include_stop_str_in_output)
        return Sequence(
            index,
            generation_request,
            self._detokenizers.new(skip_special_tokens=request.skip_special_tokens, prompt_token_ids=prompt),
            writer,
            stops=stops,
            tools=ToolCallParser() if request.tools else None,
            parallel_tool_calls=request.parallel_tool_calls,
        )

    def _sampling(self, request: ValidRequest, index: int) -> SamplingParams:
        """The request's sampling parameters over the checkpoint's defaults."""
        given = {
            name: value
            for name in ("temperature", "top_p", "top_k", "min_p")
            if (value := getattr(request, name)) is not None
        }
        if request.seed is not None:
            # Every choice has a seed of its own, or they would all be the same.
            given["seed"] = (request.seed + index) % 2**64
        for name, value in given.items():
            # A value that changes nothing is no reason to refuse.
            if name not in self.info.supported and value != getattr(SamplingParams(), name):
                raise InvalidRequestError(
                    f"'{name}' is not supported by the engine of this model ({self.info.engine}).",
                    param=name,
                    code="unsupported_parameter",
                )
        return msgspec.structs.replace(self.info.sampling_defaults, **given)

    def _echo(
        self,
        request: ValidRequest,
        sequences: list[Sequence],
        prompts: list[list[int]],
        writer: Writer,
    ) -> None:
        for sequence in sequences:
            at = sequence.index // request.n
            if request.prompt is not None and request.prompt.prompts is not None:
                text = request.prompt.prompts[at]
            else:
                detokenizer = self._detokenizers.new(skip_special_tokens=False)
                text = detokenizer.push(prompts[at]) + detokenizer.finish()
            if text:
                writer.text(sequence, text)
