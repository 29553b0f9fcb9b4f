"""What a TensorRT-LLM engine refuses beyond admission."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from openai_bls.core.engine_types import GenerationRequest
from openai_bls_tensorrt_llm import limits
from openai_bls_tensorrt_llm.installed.interface import Flow
from tests.unit.core_support import engine_info
from tests_tensorrt_llm.engine.scripted_api import manifest

INFO = engine_info(engine="tensorrt_llm")


def asked(**fields: Any) -> GenerationRequest:
    given: dict[str, Any] = {"request_id": 1, "prompt_token_ids": [1, 2], "max_tokens": 4} | fields
    return GenerationRequest(**given)


@pytest.mark.parametrize("flow", ["tensorrt", "pytorch"])
def test_a_prompt_that_one_step_does_not_hold(flow: Flow) -> None:
    request = msgspec.structs.replace(asked(), prompt_token_ids=[1, 2, 3])
    built = manifest(flow=flow, max_input_len=3, max_num_tokens=2)
    assert limits.refusal(request, built, INFO, chunked_context=True) is None
    says = "prompt_token_ids has 3 tokens: this engine takes prompts of at most 2 (enable_chunked_context is off)"
    assert limits.refusal(request, built, INFO, chunked_context=False) == says
    # Where it is not known how much a step holds, TensorRT-LLM itself refuses.
    unknown = manifest(flow=flow, max_input_len=3, max_num_tokens=0)
    assert limits.refusal(request, unknown, INFO, chunked_context=False) is None
