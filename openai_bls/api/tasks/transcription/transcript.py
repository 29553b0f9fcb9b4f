"""Transcript: the text of audio with its times, put together from what a model gives, and written in each format."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from openai_bls.api.tasks.transcription.schema import Segment, Word
from openai_bls.core.errors import ModelAnswerError
from openai_bls.pipeline.task_models.registry import TaskModel
from openai_bls.transport.model_calls import Array

_NOTHING = np.empty(0, np.float32)


class Transcript:
    """What a model has given of one audio up to now.

    Args:
        model: model that gives it.
        temperature: temperature that it was asked for.
    """

    def __init__(self, model: TaskModel, temperature: float) -> None:
        self._model = model
        self._temperature = temperature
        # A character may be cut between two responses.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._texts: list[str] = []
        self.segments: list[Segment] = []
        self.words: list[Word] = []
        self.language = ""
        """Language of the audio, as the model tells it."""
        self.completion_tokens = 0

    @property
    def text(self) -> str:
        """The text."""
        return "".join(self._texts)

    def add(self, piece: Mapping[str, Array]) -> str:
        """Take a response, and return the text in it.

        Args:
            piece: outputs by role, flat; what the model left out is absent.

        Raises:
            ModelAnswerError: it does not fit together.
        """
        texts = piece.get("text", _NOTHING).tolist()
        if len(texts) != 1:
            raise self._misfit(f"{len(texts)} texts in a response instead of one")
        self._add_segments(piece)
        starts, ends = self._times(piece, "word")
        for word, start, end in zip(self._column(piece, "word", len(starts)), starts, ends, strict=True):
            self.words.append(Word(_decoded(word), start, end))
        for language in piece.get("language", _NOTHING).tolist():
            self.language = _decoded(language) or self.language
        self.completion_tokens += int(piece.get("completion_tokens", _NOTHING).sum())
        return self._take(self._decoder.decode(texts[0]))

    def end(self) -> str:
        """The rest of the text, once there is no more."""
        return self._take(self._decoder.decode(b"", final=True))

    def _take(self, text: str) -> str:
        self._texts.append(text)
        return text

    def _add_segments(self, piece: Mapping[str, Array]) -> None:
        starts, ends = self._times(piece, "segment")
        count = len(starts)
        texts = self._column(piece, "segment_text", count)
        logprobs = self._optional(piece, "segment_avg_logprob", count)
        silences = self._optional(piece, "segment_no_speech_prob", count)
        for start, end, raw, logprob, silence in zip(starts, ends, texts, logprobs, silences, strict=True):
            text = _decoded(raw)
            self.segments.append(
                Segment(
                    id=len(self.segments),
                    start=start,
                    end=end,
                    text=text,
                    temperature=self._temperature,
                    avg_logprob=logprob,
                    compression_ratio=_compression_ratio(text),
                    no_speech_prob=silence,
                    tokens=[],
                    seek=0,
                )
            )

    def _times(self, piece: Mapping[str, Array], of: str) -> tuple[list[float], list[float]]:
        starts = self._seconds(piece, f"{of}_start")
        ends = self._seconds(piece, f"{of}_end")
        if len(starts) != len(ends) or not all(0 <= start <= end for start, end in zip(starts, ends, strict=True)):
            raise self._misfit(f"{of}s whose times are none")
        return starts, ends

    def _seconds(self, piece: Mapping[str, Array], role: str) -> list[float]:
        """Seconds in three digits: 32-bit floats have long tails."""
        return [round(value, 3) for value in piece.get(role, _NOTHING).tolist()]

    def _column(self, piece: Mapping[str, Array], role: str, count: int) -> list[bytes]:
        values: list[bytes] = piece.get(role, _NOTHING).tolist()
        if len(values) != count:
            raise self._misfit(f"{len(values)} of {role} for {count} times")
        return values

    def _optional(self, piece: Mapping[str, Array], role: str, count: int) -> Sequence[float | None]:
        values: list[float] = piece.get(role, _NOTHING).tolist()
        if values and len(values) != count:
            raise self._misfit(f"{len(values)} of {role} for {count} segments")
        return values or [None] * count

    def _misfit(self, what: str) -> ModelAnswerError:
        return ModelAnswerError(self._model.name, f"answered with {what}")


def srt(segments: Sequence[Segment]) -> str:
    """Segments as SubRip subtitles."""
    return "".join(
        f"{number}\n{_clock(one.start, ',')} --> {_clock(one.end, ',')}\n{_line(one.text)}\n\n"
        for number, one in enumerate(segments, 1)
    )


def vtt(segments: Sequence[Segment]) -> str:
    """Segments as WebVTT, in whose text & and < have a meaning."""
    cues = (
        f"{_clock(one.start, '.')} --> {_clock(one.end, '.')}\n"
        f"{_line(one.text).replace('&', '&amp;').replace('<', '&lt;')}\n\n"
        for one in segments
    )
    return "WEBVTT\n\n" + "".join(cues)


def _line(text: str) -> str:
    """A text on one line, without the arrow that marks times: a blank line would end the cue."""
    return " ".join(text.split()).replace("-->", "->")


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"


def _compression_ratio(text: str) -> float:
    """As Whisper has it: much of it is a text that repeats itself."""
    data = text.encode()
    return round(len(data) / len(zlib.compress(data)), 4)


def _decoded(text: bytes) -> str:
    return text.decode(errors="replace")
