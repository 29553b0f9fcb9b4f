"""The guard of examples/guard, which also hangs or answers as a request's `user` says; keeps every question."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from example import TritonPythonModel as Example  # type: ignore[import-not-found]

FOLDER = Path(__file__).parent


class TritonPythonModel(Example):  # type: ignore[misc]
    def answer(self, request: Any) -> Any:
        text = pb_utils.get_input_tensor_by_name(request, "request").as_numpy()[0]
        question = json.loads(text)
        with (FOLDER / "questions.jsonl").open("ab") as file:
            file.write(text + b"\n")
        user = question["request"].get("user") or ""
        if not user.startswith(question["hook"] + ":"):
            return super().answer(request)
        _, wanted = user.split(":", 1)
        if wanted == "hang":
            while not (FOLDER / "go_on").exists():
                time.sleep(0.01)
        said = np.array([wanted.encode()], dtype=np.object_)
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("response", said)])
