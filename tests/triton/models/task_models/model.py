"""Models of tests/triton/models/test_examples.py, told apart by their names: one that classifies, one that hangs."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

PATIENCE_S = 30.0


class TritonPythonModel:
    """`moderator` answers by the share of exclamation marks; `hanging` answers once the file `go` is there."""

    def initialize(self, args: dict[str, str]) -> None:
        """Remember which one it is."""
        self.name = args["model_name"]
        self.go = Path(args["model_repository"]) / "go"

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer every request."""
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        """One response."""
        texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[:, 0]
        if self.name == "hanging":
            end = time.monotonic() + PATIENCE_S
            while not self.go.exists() and time.monotonic() < end:
                time.sleep(0.01)
            output = pb_utils.Tensor("embedding", np.ones((len(texts), 2), np.float32))
        else:
            if b"boom" in texts:
                raise ValueError("/a/path of the machine")
            if b"wrong" in texts:
                return pb_utils.InferenceResponse(error=pb_utils.TritonError("this text is wrong"))
            shares = [[text.count(b"!") / len(text), 0.25] for text in texts]
            output = pb_utils.Tensor("scores", np.array(shares, np.float32))
        return pb_utils.InferenceResponse([output])
