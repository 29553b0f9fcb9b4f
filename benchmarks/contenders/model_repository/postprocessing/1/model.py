"""Triton model `postprocessing`: token ids to text, with the tokenizer that CONTENDER_TOKENIZER names."""

import os
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer


class TritonPythonModel:
    """Answers each request with the text of its ids."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer."""
        self.tokenizer = Tokenizer.from_file(os.environ["CONTENDER_TOKENIZER"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response a request."""
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        """The text of one request's ids, all of them at once."""
        ids = pb_utils.get_input_tensor_by_name(request, "TOKENS").as_numpy().tolist()
        text = np.array([self.tokenizer.decode(ids).encode()], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", text)])
