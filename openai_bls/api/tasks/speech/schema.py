"""Body, answer and events of /v1/audio/speech."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from openai_bls.api.common.bodies import convert
from openai_bls.core.errors import InvalidRequestError
from openai_bls.pipeline.task_models.registry import AudioFormat

MAX_CHARACTERS = 4096
"""Characters of a text, as at OpenAI."""


class VoiceId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A voice by its id, which is its name here."""

    id: str


class SpeechBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/audio/speech."""

    input: Annotated[str, Meta(max_length=MAX_CHARACTERS)]
    """The text, up to 4,096 characters."""
    model: str | None = None
    """May be left out where there is one model."""
    voice: str | VoiceId | None = None
    """One of the model's voices, or `{"id": ...}` with its name; without effect with a model that has one voice."""
    instructions: Annotated[str, Meta(max_length=MAX_CHARACTERS)] | None = None
    """How to speak, up to 4,096 characters; refused with a model that takes none."""
    response_format: AudioFormat | None = None
    """One of the model's formats, by default its first: `wav` or `pcm` of a model that gives samples."""
    speed: Annotated[float, Meta(ge=0.25, le=4.0)] | None = None
    """0.25 to 4; refused, but for 1, with a model that has one speed."""
    stream_format: Literal["audio", "sse"] | None = None
    """`sse` gives events with pieces in base64; else the body is the audio."""


class SpeechAnswer(msgspec.Struct, frozen=True):
    """The whole audio, where an answer is JSON: on Triton's ports."""

    audio: str
    """Base64."""
    format: str
    sample_rate: int | None
    """Samples in a second; null where the model does not say."""


class SpeechUsage(msgspec.Struct, frozen=True):
    """Tokens of the text, as the model counts them; 0 if it does not."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class SpeechDelta(msgspec.Struct, frozen=True, tag_field="type", tag="speech.audio.delta"):
    """A piece of the audio, in base64; all pieces together are the file."""

    audio: str


class SpeechDone(msgspec.Struct, frozen=True, tag_field="type", tag="speech.audio.done"):
    """The end of the audio."""

    usage: SpeechUsage


def parse_speech(body: dict[str, Any]) -> SpeechBody:
    """A valid request.

    Raises:
        InvalidRequestError: `param` names the field at fault.
    """
    request = convert(body, SpeechBody)
    if not request.input.strip():
        raise InvalidRequestError("'input' is empty: there is nothing to speak.", param="input")
    return request
