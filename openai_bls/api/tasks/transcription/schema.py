"""Bodies, answers and events of /v1/audio/transcriptions and /v1/audio/translations.

Source: the types of OpenAI's Python library.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from openai_bls.api.common.documented import limits
from openai_bls.api.common.unsupported import Unsupported, refuse_unsupported
from openai_bls.core.errors import InvalidRequestError

TIMED = ("srt", "verbose_json", "vtt")
"""Formats with times."""
TEXTS = ("srt", "text", "vtt")
"""Formats that are no JSON."""

Texts = Annotated[list[str], limits(maxItems=128)]


class ServerVad(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Cuts at pauses, which the server would make."""

    type: Literal["server_vad"]
    prefix_padding_ms: int | None = None
    silence_duration_ms: int | None = None
    threshold: float | None = None


class TranslationBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Form of /v1/audio/translations; the same as JSON on Triton's ports."""

    file: bytes
    """FLAC, MP3, MP4, MPEG, Ogg, WAV or WebM, up to `max_audio_bytes` and `max_audio_seconds`; in JSON base64."""
    model: str | None = None
    """May be left out where there is one model."""
    prompt: str | None = None
    """What came before, or words to expect; refused with a model that takes none."""
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"] | None = None
    """`json` unless given; `srt`, `vtt` and `verbose_json` need a model with segments. `diarized_json` is refused."""
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    """0 to 1; refused, but for 0, with a model that takes none."""


class TranscriptionBody(TranslationBody, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Form of /v1/audio/transcriptions, in which arrays are `name[]`; the same as JSON on Triton's ports."""

    language: Annotated[str, Meta(max_length=64)] | None = None
    """Language of the audio, ISO 639-1; refused with a model that takes none, unless it is the model's own."""
    timestamp_granularities: Annotated[list[Literal["word", "segment"]], limits(maxItems=2)] | None = None
    """`segment` unless given; `word` needs a model with words. Only with `verbose_json`."""
    stream: bool | None = None
    """Events with pieces of the text as they come; with the formats `json` and `text`."""
    chunking_strategy: Literal["auto"] | ServerVad | None = None
    """`auto` is taken without effect: the model gets the audio whole. `server_vad` is refused."""
    include: list[Literal["logprobs"]] | None = None
    """Refused, unless it is empty."""
    keywords: Texts | None = None
    """Refused: `prompt` may have them."""
    languages: Texts | None = None
    """Refused: give one `language`."""
    known_speaker_names: Texts | None = None
    """Refused."""
    known_speaker_references: Texts | None = None
    """Refused."""


BodyT = TypeVar("BodyT", bound=TranslationBody)

_NO_SPEAKERS = Unsupported(([],), "no model tells speakers apart")
UNSUPPORTED = {
    "include": Unsupported(([],), "the model gives no log-probabilities"),
    "keywords": Unsupported(([],), "put the words into 'prompt'"),
    "languages": Unsupported(([],), "give one 'language', or leave it to the model"),
    "known_speaker_names": _NO_SPEAKERS,
    "known_speaker_references": _NO_SPEAKERS,
}
"""Fields of transcriptions that are refused."""


class Segment(msgspec.Struct, frozen=True):
    """A part of the text with its times."""

    id: int
    start: float
    """Seconds from the beginning of the audio."""
    end: float
    text: str
    temperature: float
    """As asked for."""
    avg_logprob: float | None
    """Null where the model does not give it, as `no_speech_prob`."""
    compression_ratio: float
    """Bytes of the text by those of its zlib form."""
    no_speech_prob: float | None
    tokens: list[int]
    """Always empty."""
    seek: int
    """Always 0."""


class Word(msgspec.Struct, frozen=True):
    """A word with its times."""

    word: str
    start: float
    """Seconds from the beginning of the audio."""
    end: float


class DurationUsage(msgspec.Struct, frozen=True, tag_field="type", tag="duration"):
    """Usage where the model counts no tokens."""

    seconds: float


class TokenUsage(msgspec.Struct, frozen=True, tag_field="type", tag="tokens"):
    """Usage where the model counts tokens."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class Language(msgspec.Struct, frozen=True):
    """A language of the audio."""

    code: str


class Transcription(msgspec.Struct, frozen=True):
    """The text; `text`, `srt` and `vtt` are the text of the answer, and this on Triton's ports."""

    text: str
    languages: list[Language] | UnsetType = UNSET
    """The language, where the model tells it."""
    usage: DurationUsage | TokenUsage | UnsetType = UNSET


class TranscriptionVerbose(msgspec.Struct, frozen=True):
    """The text with its times."""

    duration: float
    """Seconds of the audio."""
    language: str
    """As the model tells it; else its only one, the one asked for, or `und`."""
    text: str
    segments: list[Segment] | UnsetType = UNSET
    words: list[Word] | UnsetType = UNSET
    usage: DurationUsage | UnsetType = UNSET


class Translation(msgspec.Struct, frozen=True):
    """The text in English."""

    text: str


class TranslationVerbose(msgspec.Struct, frozen=True):
    """The text in English with its times."""

    duration: float
    language: Literal["english"]
    text: str
    segments: list[Segment]


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="transcript.text.delta"):
    """A piece of the text; all pieces together are the text."""

    delta: str


class TextDone(msgspec.Struct, frozen=True, tag_field="type", tag="transcript.text.done"):
    """The end, with the whole text."""

    text: str
    languages: list[Language] | UnsetType = UNSET
    usage: TokenUsage | UnsetType = UNSET


Answer = Transcription | TranscriptionVerbose | Translation | TranslationVerbose


def check_body(body: TranslationBody) -> None:
    """Refuse what no model does.

    Raises:
        InvalidRequestError: `param` names the field.
    """
    if body.response_format == "diarized_json":
        raise InvalidRequestError(
            "'response_format' diarized_json is not supported: no model tells speakers apart.",
            param="response_format",
            code="unsupported_parameter",
        )
    if not isinstance(body, TranscriptionBody):
        return
    fields: dict[str, Any] = {name: getattr(body, name) for name in UNSUPPORTED}
    refuse_unsupported(fields, UNSUPPORTED)
    if isinstance(body.chunking_strategy, ServerVad):
        raise InvalidRequestError(
            "'chunking_strategy' server_vad is not supported: the model gets the audio whole.",
            param="chunking_strategy",
            code="unsupported_parameter",
        )
    if body.timestamp_granularities and body.response_format != "verbose_json":
        raise InvalidRequestError(
            "'timestamp_granularities' goes with 'response_format' verbose_json.", param="timestamp_granularities"
        )
    if body.stream and body.response_format in TIMED:
        raise InvalidRequestError("'stream' goes with 'response_format' json or text.", param="stream")
