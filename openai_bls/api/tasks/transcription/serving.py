"""Serving of transcriptions: what another Triton model hears in audio, as a whole answer or as events."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import numpy as np
from msgspec import UNSET, UnsetType

from openai_bls.api.common.encoding import encode
from openai_bls.api.common.events.event_sink import ChunkSink
from openai_bls.api.common.events.pieces import event, send
from openai_bls.api.common.one_shot import Tally, admitted
from openai_bls.api.common.unsupported import Unsupported, refuse_unsupported
from openai_bls.api.tasks.transcription.schema import (
    TEXTS,
    TIMED,
    Answer,
    DurationUsage,
    Language,
    TextDelta,
    TextDone,
    TokenUsage,
    Transcription,
    TranscriptionBody,
    TranscriptionVerbose,
    Translation,
    TranslationBody,
    TranslationVerbose,
    check_body,
)
from openai_bls.api.tasks.transcription.transcript import Transcript, srt, vtt
from openai_bls.core.errors import ApiError, InvalidRequestError, ModelAnswerError
from openai_bls.core.usage import Usage
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import Target
from openai_bls.pipeline.service import Service, within
from openai_bls.pipeline.task_models.registry import TaskModel
from openai_bls.transport.model_calls import Array, text_array

_OF_INPUTS = {
    "language": Unsupported((), "the model takes no language"),
    "prompt": Unsupported(("",), "the model takes no prompt"),
    "temperature": Unsupported((0,), "the model has no temperature"),
}
"""Fields that need an input of the model."""
_UNKNOWN_LANGUAGE = "und"
"""Language that is not known, as ISO 639-2 says it."""


class Hearing:
    """A valid request to a model.

    Args:
        service: service that takes the request.
        context: context of the request, which is told of fields without effect.
        model: model of transcriptions without a fault.
        body: body of the request.

    Raises:
        InvalidRequestError: the model does not have what the request asks for.
    """

    def __init__(self, service: Service, context: RequestContext, model: TaskModel, body: TranslationBody) -> None:
        self._service = service
        self._context = context
        self._model = model
        self._body = body
        self._transcription = body if isinstance(body, TranscriptionBody) else None
        self._format = body.response_format or "json"
        self._language = (self._transcription and self._transcription.language) or ""
        self._transcript = Transcript(model, body.temperature or 0.0)
        self._seconds = 0.0
        self._usage: TokenUsage | None = None
        self._check()
        if self._transcription is not None and self._transcription.chunking_strategy is not None:
            context.ignored = (*context.ignored, "chunking_strategy")

    @property
    def streams(self) -> bool:
        """True if the answer is events."""
        return self._transcription is not None and bool(self._transcription.stream)

    @property
    def is_text(self) -> bool:
        """True if the answer is a text and no JSON."""
        return self._format in TEXTS

    def _check(self) -> None:
        model, body = self._model, self._body
        fields = {"language": self._language or None, "prompt": body.prompt, "temperature": body.temperature}
        if model.language and self._language.lower() == model.language.lower():
            fields["language"] = None
        refuse_unsupported(fields, {name: known for name, known in _OF_INPUTS.items() if name not in model.inputs})
        if self._transcription is None and "task" not in model.inputs:
            raise InvalidRequestError(
                f"The model {model.name!r} transcribes and does not translate: it has no input 'task'.",
                param="model",
                code="unsupported_endpoint",
            )
        words, segments = self._granularities
        if segments and "segment_text" not in model.outputs:
            raise InvalidRequestError(
                f"'response_format' {self._format} needs the times of segments, which the model {model.name!r} does "
                "not give: json and text do not.",
                param="response_format",
                code="unsupported_parameter",
            )
        if words and "word" not in model.outputs:
            raise InvalidRequestError(
                f"'timestamp_granularities' word: the model {model.name!r} does not give the times of words.",
                param="timestamp_granularities",
                code="unsupported_parameter",
            )

    @property
    def _granularities(self) -> tuple[bool, bool]:
        """Whether the answer has words, and whether it has segments."""
        asked = (self._transcription and self._transcription.timestamp_granularities) or ["segment"]
        is_timed = self._format in TIMED
        return is_timed and "word" in asked, is_timed and "segment" in asked

    async def answer(self) -> Answer:
        """The whole answer. Cancelling this cancels the request to a decoupled model.

        Raises:
            ApiError: the audio is bad, the server takes no more, or the model failed.
        """
        deadline = self._context.deadline(None, time.monotonic())
        await within(deadline, self._hear())
        return self._answer()

    async def _hear(self) -> None:
        with admitted(self._service, self._context, self._model.name) as tally:
            async with aclosing(self._deltas(tally)) as deltas:
                async for _ in deltas:
                    pass

    async def stream(self, sink: ChunkSink) -> None:
        """Send the events into the sink. Cancelling this cancels the request to a decoupled model."""
        guarded = self._context.guarded
        if guarded is not None:
            guarded.streams(lambda usage: self._answer())
        try:
            with admitted(self._service, self._context, self._model.name) as tally:
                await send(sink, tally, self._events(sink, tally))
            done = TextDone(self._transcript.text, self._languages, self._usage or UNSET)
            sink.write(event(sink, encode(done)))
            sink.end()
        except ApiError as error:
            sink.fail(error)

    async def _events(self, sink: ChunkSink, tally: Tally) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._deltas(tally)) as deltas:
            async for delta in deltas:
                yield event(sink, encode(TextDelta(delta)))

    async def _deltas(self, tally: Tally) -> AsyncGenerator[str, None]:
        """Pieces of the text that are not empty; the transcript has all of it at the end."""
        model, audio = self._model, self._service.audio
        with audio.budget.lease(self._context.key) as lease:
            rate = model.sample_rate
            assert rate is not None
            samples = np.frombuffer(await audio.load(self._body.file, rate, self._context.key, lease), np.float32)
            self._seconds = round(len(samples) / rate, 3)
            call = self._service.task_call(model, self._context.key, "file", self._context.timeout_s)
            empty = True
            async with aclosing(call.pieces(self._inputs(samples))) as pieces:
                async for piece in pieces:
                    empty = False
                    delta = self._transcript.add(piece)
                    if delta:
                        yield delta
            if empty:
                raise ModelAnswerError(model.name, "sent no response")
            if rest := self._transcript.end():
                yield rest
            if "completion_tokens" in model.outputs:
                given, made = call.prompt_tokens, self._transcript.completion_tokens
                self._usage = TokenUsage(given, made, given + made)
                tally.usage = Usage.of(given, made)

    def _inputs(self, samples: Array) -> dict[str, Array]:
        body = self._body
        values = {
            "audio": samples,
            "language": text_array(self._language),
            "prompt": text_array(body.prompt or ""),
            "temperature": np.array([body.temperature or 0.0], np.float32),
            "task": text_array("translate" if self._transcription is None else "transcribe"),
        }
        return {role: value for role, value in values.items() if role in self._model.inputs}

    @property
    def _languages(self) -> list[Language] | UnsetType:
        return [Language(self._transcript.language)] if self._transcript.language else UNSET

    def _answer(self) -> Answer:
        heard = self._transcript
        if self._format == "verbose_json":
            return self._verbose()
        if self.is_text:
            made = {"srt": srt, "vtt": vtt}.get(self._format)
            return Transcription(heard.text if made is None else made(heard.segments))
        if self._transcription is None:
            return Translation(heard.text)
        return Transcription(heard.text, self._languages, self._usage or DurationUsage(self._seconds))

    def _verbose(self) -> Answer:
        heard = self._transcript
        if self._transcription is None:
            return TranslationVerbose(self._seconds, "english", heard.text, heard.segments)
        words, segments = self._granularities
        return TranscriptionVerbose(
            self._seconds,
            heard.language or self._model.language or self._language or _UNKNOWN_LANGUAGE,
            heard.text,
            heard.segments if segments else UNSET,
            heard.words if words else UNSET,
            DurationUsage(self._seconds),
        )


async def hearing(service: Service, context: RequestContext, body: TranslationBody) -> Hearing:
    """A request that its model can answer.

    Raises:
        ApiError: there is no model for it, or it does not have what the request asks for.
    """
    context.stream = isinstance(body, TranscriptionBody) and bool(body.stream)
    check_body(body)
    model = await service.find_task(context, body.model, "transcription")
    assert not isinstance(model, Target), "no engine hears"
    return Hearing(service, context, model, body)
