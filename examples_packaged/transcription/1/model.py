"""English transcription by PocketSphinx, whose package carries its acoustic model, dictionary and language model."""

import io
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import triton_python_backend_utils as pb_utils
from pocketsphinx import Decoder, Segmenter

RATE = 16000
FRAMES = 100
"""Frames of the decoder in a second."""
MARGIN_S = 0.25
"""Seconds around a phrase, of which the detector of speech cuts off the edges."""
ALTERNATIVE = re.compile(r"\(\d+\)$")
"""What follows a word where the dictionary has several pronunciations. Noise and silence are in < > and [ ]."""
SILENCE = bytes(2 * RATE)
"""A second of it, which ends the last phrase."""


class Phrase(NamedTuple):
    """What is said between two pauses; times are in seconds from the start of the audio."""

    start: float
    end: float
    text: str
    words: list[tuple[float, float, str]]


def phrases(decoder: Any, samples: Any) -> Iterator[Phrase]:
    """The phrases of samples from -1 to 1, as they are recognized."""
    # What it has learned of the noise in an earlier audio, perhaps another client's, would change them.
    decoder.reinit_feat()
    pcm = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
    for segment in Segmenter(sample_rate=RATE).segment(io.BytesIO(pcm + SILENCE)):
        begin = max(0.0, segment.start_time - MARGIN_S)
        decoder.start_utt()
        decoder.process_raw(pcm[2 * int(begin * RATE) : 2 * int((segment.end_time + MARGIN_S) * RATE)], full_utt=True)
        decoder.end_utt()
        found = [
            (begin + part.start_frame / FRAMES, begin + (part.end_frame + 1) / FRAMES, ALTERNATIVE.sub("", part.word))
            for part in decoder.seg() or ()
            if part.word[0] not in "<["
        ]
        if found:
            yield Phrase(found[0][0], found[-1][1], " ".join(word for _, _, word in found), found)


class TritonPythonModel:
    """Recognizes one audio after the other, phrase by phrase."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model of the package."""
        self.decoder = Decoder(samprate=RATE, loglevel="FATAL")

    def execute(self, requests: list[Any]) -> None:
        """Answer every request, with at least one response."""
        for request in requests:
            sender = request.get_response_sender()
            samples = pb_utils.get_input_tensor_by_name(request, "audio").as_numpy()
            try:
                found = phrases(self.decoder, samples)
                phrase = next(found, None)
                sender.send(response("" if phrase is None else phrase.text, phrase))
                while phrase is not None and not sender.is_cancelled():
                    phrase = next(found, None)
                    if phrase is not None:
                        sender.send(response(f" {phrase.text}", phrase))
            except Exception as error:
                pb_utils.Logger.log_error(repr(error))
                sender.send(
                    pb_utils.InferenceResponse(error=pb_utils.TritonError("this audio could not be recognized"))
                )
            finally:
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def response(text: str, phrase: Phrase | None) -> Any:
    """The next piece of the text, with the phrase that it is and its words."""
    segments = [] if phrase is None else [phrase[:3]]
    words = [] if phrase is None else phrase.words
    tensors = [pb_utils.Tensor("text", texts([text]))]
    for rows, start, end, said in (
        (segments, "segment_start", "segment_end", "segment_text"),
        (words, "word_start", "word_end", "word"),
    ):
        tensors += [
            pb_utils.Tensor(start, np.array([row[0] for row in rows], np.float32)),
            pb_utils.Tensor(end, np.array([row[1] for row in rows], np.float32)),
            pb_utils.Tensor(said, texts([row[2] for row in rows])),
        ]
    return pb_utils.InferenceResponse(tensors)


def texts(values: list[str]) -> Any:
    """A tensor of texts."""
    return np.array([value.encode() for value in values], np.object_)
