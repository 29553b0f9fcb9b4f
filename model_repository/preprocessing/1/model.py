"""Triton model `preprocessing`: chat template and tokenization. See docs/architecture.md."""

from pathlib import Path
from typing import Any

from openai_bls import triton
from openai_bls.preprocessing import Preprocessing


class TritonPythonModel:
    """Answers each request from `openai_bls` (packed) or from the ensemble (official tensors)."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer."""
        triton.log_to_triton()
        path = Path(args["model_repository"]) / args["model_version"] / "tokenizer"
        try:
            self.preprocessing = Preprocessing(path)
        except (OSError, ValueError) as error:
            raise triton.load_error(f"no usable tokenizer: {error}") from None

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response a request."""
        return [triton.answer(request, self.preprocessing) for request in requests]
