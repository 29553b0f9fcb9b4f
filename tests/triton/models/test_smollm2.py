"""SmolLM2-135M-Instruct from the package index, by llama.cpp over the real server: nearly what transformers computes.

Left out unless asked for, with the package index or a filled cache: `pytest -m smollm2`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.source.named_models import fetch
from openai_bls.launcher.testing import copy_models, run_server
from tests.triton.conftest import ROOT
from tests_llama_cpp.engine.llama_cpp_support import needs_llama_cpp

pytestmark = [pytest.mark.smollm2, pytest.mark.timeout(1200)]

MOST_ROUNDING = 1.0
"""Difference of log-probabilities of likely tokens, from rounding activations to 8 bits."""
CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "user", "content": "Write a short poem about the sea, with an emoji."}],
    [
        {"role": "system", "content": "You answer like a pirate."},
        {"role": "user", "content": "How much is 12 + 30?"},
    ],
    [
        {"role": "user", "content": "My name is Zoë and I am 34 years old."},
        {"role": "assistant", "content": "Nice to meet you, Zoë!"},
        {"role": "user", "content": "What is my name, and how old am I?"},
    ],
]


@needs_llama_cpp
def test_llama_cpp(tmp_path: Path) -> None:
    """The likeliest first tokens of answers are as likely as transformers says, but for llama.cpp's rounding."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    repository = tmp_path / "model_repository"
    copy_models(ROOT / "model_repository", repository)
    build(BuildOptions("smollm2", repository, engine="llama_cpp"), print)
    file = fetch("smollm2", print)
    tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    with (
        run_server(repository) as server,
        openai.OpenAI(base_url=server.openai_url, api_key="none", max_retries=0) as client,
    ):
        for chat in CHATS:
            asked: dict[str, Any] = {"model": "smollm2", "messages": chat, "temperature": 0, "max_tokens": 1}
            answer: Any = client.chat.completions.create(**asked, logprobs=True, top_logprobs=5)
            prompt = tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            with torch.no_grad():
                expected = torch.log_softmax(model(**prompt).logits[0, -1], -1)
            for top in answer.choices[0].logprobs.content[0].top_logprobs:
                (token_id,) = tokenizer.encode(top.token, add_special_tokens=False)
                assert abs(top.logprob - float(expected[token_id])) < MOST_ROUNDING
