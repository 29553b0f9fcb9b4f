"""Guard that lets everything pass."""

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

PASS = np.array([b"{}"], dtype=np.object_)


class TritonPythonModel:
    """Answers {}."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer every request."""
        return [pb_utils.InferenceResponse([pb_utils.Tensor("response", PASS)]) for _ in requests]
