"""Triton model `postprocessing`: detokenization for the ensemble and direct users. See docs/architecture.md."""

from pathlib import Path
from typing import Any

from openai_bls import stub, triton
from openai_bls.postprocessing import Postprocessing


class TritonPythonModel:
    """Answers each request with the text of its tokens."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer."""
        triton.log_to_triton()
        path = Path(args["model_repository"]) / args["model_version"] / "tokenizer"
        try:
            self.postprocessing = Postprocessing(path)
        except (OSError, ValueError) as error:
            raise triton.load_error(f"no usable tokenizer: {error}") from None
        stub.settle()

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response a request."""
        return [triton.answer(request, self.postprocessing) for request in requests]
