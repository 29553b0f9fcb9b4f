"""English speech by hibari, whose package carries its voice: a 7.9 MB ONNX model."""

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from hibari import Hibari

SEED = 0
"""Of the noise in the voice: the same text is the same audio."""


class TritonPythonModel:
    """Speaks one text after the other, sentence by sentence."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the voice and what knows how words sound."""
        self.voice = Hibari()
        self.voice("Hello.")

    def execute(self, requests: list[Any]) -> None:
        """Answer every request, with at least one response."""
        for request in requests:
            sender = request.get_response_sender()
            text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[0].decode()
            speed = pb_utils.get_input_tensor_by_name(request, "speed")
            try:
                pace = 1.0 if speed is None else float(speed.as_numpy()[0])
                # A text without a word is no audio.
                sentences = iter(self.voice.stream(text, pace, SEED))
                audio = next(sentences, np.zeros(0))
                while audio is not None and not sender.is_cancelled():
                    sender.send(response(audio))
                    audio = next(sentences, None)
            except Exception as error:
                pb_utils.Logger.log_error(repr(error))
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("this text could not be spoken")))
            finally:
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def response(audio: Any) -> Any:
    """A piece of the audio."""
    return pb_utils.InferenceResponse([pb_utils.Tensor("audio", audio.astype(np.float32))])
