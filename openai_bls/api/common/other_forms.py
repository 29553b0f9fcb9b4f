"""Requests in the forms of other models, which get a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openai_bls.core.errors import InvalidRequestError

_INSTEAD = {
    "text_input": "the same is 'prompt' here; 'ensemble' and 'tensorrt_llm_bls' take 'text_input'",
    "sampling_parameters": "give its members as fields next to 'prompt'; 'tensorrt_llm_bls' takes it",
}


def refuse_text_input(fields: Mapping[str, Any]) -> None:
    """Refuse a request of tensorrtllm_backend's or vLLM's form to `openai_bls` by what it should have instead.

    Raises:
        InvalidRequestError: it is one.
    """
    for name, instead in _INSTEAD.items():
        if name in fields:
            raise InvalidRequestError(f"'{name}' is no field: {instead}.", param=name, code="unsupported_parameter")
