"""The demo's golden answers by vLLM."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoTokenizer

from benchmarks.golden import golden_lines
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, SamplingParams
from tests.paths import DEMO
from tests_vllm.installed.conftest import Served


def golden_requests(info: EngineInfo) -> tuple[list[GenerationRequest], list[str], Any]:
    """Requests with golden answers, these answers, and the tokenizer."""
    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO)
    lines, requests = golden_lines(), []
    for line in lines:
        text = line.get("raw") or tokenizer.apply_chat_template(
            line["messages"], tools=line.get("tools"), tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(text)["input_ids"]
        most = min(info.max_model_len - len(ids), line["tokens"] + 32)
        sampling = SamplingParams(temperature=0)
        requests.append(GenerationRequest(0, ids, most, sampling, stop_token_ids=info.eos_token_ids))
    return requests, [line["answer"] for line in lines], tokenizer


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("at_once", [1, None], ids=["alone", "together"])
def test_golden_answers(vllm: Served, at_once: int | None) -> None:
    # Decides on what /v1 lets an engine's grammars have.
    assert vllm.engine.info.grammar_dialect == "guidance"
    requests, wanted, tokenizer = golden_requests(vllm.engine.info)
    if at_once:
        # One after the other they take as long as all their tokens: some are enough.
        requests, wanted = requests[::4], wanted[::4]
    answers = vllm.ask(requests, at_once)
    assert [answer.error for answer in answers] == [None] * len(wanted)
    assert [tokenizer.decode(answer.tokens, skip_special_tokens=True) for answer in answers] == wanted
