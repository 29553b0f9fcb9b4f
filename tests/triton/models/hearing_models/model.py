"""Models of tests/triton/models/test_transcription.py: they tell what they were given, one second after the other."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

RATE = 16_000
TEXTS = ("language", "prompt", "task")
PATIENCE_S = 30.0


class TritonPythonModel:
    """A word for each second: its number and its level. `whole` gives all it can, `plain` text alone."""

    def initialize(self, args: dict[str, str]) -> None:
        """Remember which one it is."""
        self.name = args["model_name"]
        self.gone = Path(args["model_repository"]) / "gone"

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Answer every request."""
        if self.name != "streaming":
            return [self.answer(request) for request in requests]
        for request in requests:
            self.stream(request, request.get_response_sender())
        return None

    def answer(self, request: Any) -> Any:
        """One response."""
        audio = pb_utils.get_input_tensor_by_name(request, "audio").as_numpy()
        if audio.size and audio.max() > 0.9:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("this is too loud"))
        words = self.words(audio.reshape(-1))
        text = " ".join(words)
        if self.name == "plain":
            return pb_utils.InferenceResponse([texts("text", [text], (1, 1))])
        prompt = {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0].decode() for name in TEXTS}
        temperature = float(pb_utils.get_input_tensor_by_name(request, "temperature").as_numpy()[0])
        spoken = f"{text} {json.dumps({**prompt, 'temperature': temperature})}"
        starts = np.arange(len(words), dtype=np.float32)
        return pb_utils.InferenceResponse(
            [
                texts("text", [spoken], (1,)),
                *(pb_utils.Tensor(f"{of}_start", starts) for of in ("segment", "word")),
                *(pb_utils.Tensor(f"{of}_end", starts + np.float32(1)) for of in ("segment", "word")),
                *(texts(name, words, (len(words),)) for name in ("segment_text", "word")),
                texts("language", ["en"], (1,)),
                pb_utils.Tensor("prompt_tokens", np.array([audio.size // 320], np.int32)),
                pb_utils.Tensor("completion_tokens", np.array([len(words)], np.int32)),
            ]
        )

    def stream(self, request: Any, sender: Any) -> None:
        """A response for each second, until the client goes."""
        audio = pb_utils.get_input_tensor_by_name(request, "audio").as_numpy().reshape(-1)
        for word in self.words(audio):
            sender.send(pb_utils.InferenceResponse([texts("text", [f"{word} "], (1,))]))
        end = time.monotonic() + PATIENCE_S
        # A file of more than a minute: the client is to leave.
        while len(audio) > 60 * RATE and time.monotonic() < end:
            if sender.is_cancelled():
                self.gone.touch()
                break
            time.sleep(0.01)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def words(self, audio: Any) -> list[str]:
        """A word for each second."""
        return [f"{at // RATE}:{np.abs(audio[at : at + RATE]).mean():.3f}" for at in range(0, len(audio), RATE)]


def texts(name: str, values: list[str], shape: tuple[int, ...]) -> Any:
    """A tensor of texts."""
    return pb_utils.Tensor(name, np.array([value.encode() for value in values], np.object_).reshape(shape))
