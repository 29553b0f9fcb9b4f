"""Serving of speech: what another Triton model makes of a text, in pieces as they come, or whole."""

from __future__ import annotations

import base64
import functools
from collections.abc import AsyncGenerator
from contextlib import aclosing

import numpy as np

from openai_bls.api.common.encoding import encode
from openai_bls.api.common.events.event_sink import ChunkSink
from openai_bls.api.common.events.pieces import event, send
from openai_bls.api.common.large_bodies import parsed
from openai_bls.api.common.one_shot import Tally, admitted
from openai_bls.api.common.unsupported import Unsupported, refuse_unsupported
from openai_bls.api.tasks.speech.schema import SpeechAnswer, SpeechBody, SpeechDelta, SpeechDone, SpeechUsage, VoiceId
from openai_bls.api.tasks.speech.wav import pcm, wav_head
from openai_bls.core.errors import ApiError, InvalidRequestError, ModelAnswerError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import Target
from openai_bls.pipeline.service import Service
from openai_bls.pipeline.task_models.registry import TaskModel
from openai_bls.transport.model_calls import Array, text_array

_CONTENT_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
_LARGE_SAMPLES = 100_000
"""Samples that take more than a millisecond."""
_OF_INPUTS = {
    "instructions": Unsupported(("",), "the model takes no instructions"),
    "speed": Unsupported((1,), "the model has one speed"),
}
"""Fields that need an input of the model."""


class Speech:
    """A valid request to a model.

    Args:
        service: service that takes the request.
        context: context of the request, which is told of fields without effect.
        model: speech model without a fault.
        body: body of the request.

    Raises:
        InvalidRequestError: the model does not have what the request asks for.
    """

    def __init__(self, service: Service, context: RequestContext, model: TaskModel, body: SpeechBody) -> None:
        self._service = service
        self._context = context
        self._model = model
        absent = {name: known for name, known in _OF_INPUTS.items() if name not in model.inputs}
        refuse_unsupported({name: getattr(body, name) for name in absent}, absent)
        self.format = self._format(body)
        """Format of the audio."""
        self._inputs = {
            "text": text_array(body.input),
            "voice": text_array(self._voice(body)),
            "instructions": text_array(body.instructions or ""),
            "speed": np.array([1.0 if body.speed is None else body.speed], np.float32),
            "format": text_array(self.format),
        }
        self.streams = body.stream_format == "sse" or model.decoupled
        """True if the audio is sent in pieces."""
        self.has_events = body.stream_format == "sse"
        """True if the pieces are events."""

    @property
    def content_type(self) -> str:
        """Content type of the audio; PCM has its sample rate there alone."""
        rate = self._model.sample_rate
        return _CONTENT_TYPES[self.format] + (f";rate={rate}" if self.format == "pcm" and rate else "")

    def _format(self, body: SpeechBody) -> str:
        formats = self._model.formats
        if body.response_format is not None and body.response_format not in formats:
            raise InvalidRequestError(
                f"The model {self._model.name!r} gives {' or '.join(formats)}, not {body.response_format}.",
                param="response_format",
            )
        return body.response_format or formats[0]

    def _voice(self, body: SpeechBody) -> str:
        model, voice = self._model, body.voice.id if isinstance(body.voice, VoiceId) else body.voice
        if "voice" not in model.inputs and voice is not None:
            # OpenAI's clients must name one.
            self._context.ignored = (*self._context.ignored, "voice")
        elif model.voices and voice is not None and voice not in model.voices:
            raise InvalidRequestError(
                f"The model {model.name!r} has the voices {', '.join(model.voices)}, not {voice!r}.", param="voice"
            )
        return voice or (model.voices[0] if model.voices else "")

    async def whole(self) -> bytes:
        """The audio as a file. Cancelling this cancels the request to a decoupled model.

        Raises:
            ApiError: the server takes no more, or the model failed.
        """
        guarded = self._context.guarded
        if guarded is not None:
            # A guard is told of the end, and not shown the audio.
            guarded.streams(lambda usage: None)
        with admitted(self._service, self._context, self._model.name) as tally:
            async with aclosing(self._pieces(tally)) as pieces:
                audio = b"".join([piece async for piece in pieces])
        return self._head(len(audio)) + audio

    async def answer(self) -> SpeechAnswer:
        """The audio as JSON has it; raises as `whole` does."""
        return SpeechAnswer(_base64(await self.whole()), self.format, self._model.sample_rate)

    async def stream(self, sink: ChunkSink) -> None:
        """Send the audio into the sink, piece by piece. Cancelling this cancels the request to a decoupled model."""
        guarded = self._context.guarded
        if guarded is not None:
            guarded.streams(lambda usage: None)
        try:
            with admitted(self._service, self._context, self._model.name) as tally:
                await send(sink, tally, self._chunks(sink, tally))
                usage = SpeechUsage(tally.prompt_tokens, 0, tally.prompt_tokens)
            if self.has_events:
                sink.write(event(sink, encode(SpeechDone(usage))))
            sink.end()
        except ApiError as error:
            sink.fail(error)

    async def _chunks(self, sink: ChunkSink, tally: Tally) -> AsyncGenerator[bytes, None]:
        head = self._head(None)
        async with aclosing(self._pieces(tally)) as pieces:
            async for piece in pieces:
                audio, head = head + piece, b""
                if audio:
                    yield event(sink, encode(SpeechDelta(_base64(audio)))) if self.has_events else audio

    def _head(self, data_bytes: int | None) -> bytes:
        """Beginning of the file where the model gives samples."""
        rate = self._model.sample_rate
        is_wav_of_samples = self.format == "wav" and self._gives_samples
        return wav_head(rate, data_bytes) if is_wav_of_samples and rate is not None else b""

    @property
    def _gives_samples(self) -> bool:
        return self._model.outputs["audio"].data_type != "TYPE_STRING"

    async def _pieces(self, tally: Tally) -> AsyncGenerator[bytes, None]:
        """The pieces of the audio, at least one."""
        model = self._model
        call = self._service.task_call(model, self._context.key, "input", self._context.timeout_s)
        inputs = {role: row for role, row in self._inputs.items() if role in model.inputs}
        empty = True
        async with aclosing(call.pieces(inputs)) as pieces:
            async for piece in pieces:
                tally.prompt_tokens = call.prompt_tokens
                audio = piece.get("audio")
                if audio is None:
                    raise ModelAnswerError(model.name, "sent a response without audio")
                empty = False
                if self._gives_samples:
                    yield await parsed(
                        functools.partial(pcm, audio), large=audio.size > _LARGE_SAMPLES, key=self._context.key
                    )
                else:
                    yield self._encoded(audio)
        if empty:
            raise ModelAnswerError(model.name, "sent no response")

    def _encoded(self, audio: Array) -> bytes:
        if len(audio) != 1:
            raise ModelAnswerError(self._model.name, f"answered with {len(audio)} texts of audio instead of one")
        return bytes(audio[0])


async def speech(service: Service, context: RequestContext, body: SpeechBody) -> Speech:
    """A request that its model can answer.

    Raises:
        ApiError: there is no model for it, or it does not have what the request asks for.
    """
    context.stream = body.stream_format == "sse"
    model = await service.find_task(context, body.model, "speech")
    assert not isinstance(model, Target), "no engine speaks"
    asked = Speech(service, context, model, body)
    context.stream = asked.streams
    return asked


def _base64(audio: bytes) -> str:
    return base64.b64encode(audio).decode()
