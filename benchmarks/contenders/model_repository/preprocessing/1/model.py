"""Triton model `preprocessing`: text to token ids, with the tokenizer that CONTENDER_TOKENIZER names."""

import os
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer


class TritonPythonModel:
    """Answers each request with the ids of its text."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer."""
        self.tokenizer = Tokenizer.from_file(os.environ["CONTENDER_TOKENIZER"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response a request."""
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        """The ids of one text."""
        try:
            text = pb_utils.get_input_tensor_by_name(request, "QUERY").as_numpy().item().decode()
        except UnicodeDecodeError:
            error = pb_utils.TritonError("'QUERY' is not UTF-8.", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        ids = np.array(self.tokenizer.encode(text).ids, dtype=np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("INPUT_ID", ids)])
