"""SmolLM2-135M-Instruct from the package index, over the real server: its chats are those of transformers' `generate`,
and by llama.cpp nearly so.

Left out unless asked for, with the package index or a filled cache: `pytest -m smollm2`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.source.named_models import fetch
from openai_bls.launcher.testing import copy_models, run_server
from tests.triton.conftest import ROOT
from tests.unit.engines.llama_cpp.llama_cpp_support import needs_llama_cpp

pytestmark = [pytest.mark.smollm2, pytest.mark.timeout(1200)]

MAX_TOKENS = 64
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


def expected_answers(file: Path) -> list[str]:
    """What transformers generates from the same file, one chat after the other."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    answers = []
    for chat in CHATS:
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        output = model.generate(**prompt, do_sample=False, max_new_tokens=MAX_TOKENS)
        answers.append(tokenizer.decode(output[0, prompt.input_ids.shape[1] :], skip_special_tokens=True))
    return answers


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


def test_chats(tmp_path: Path) -> None:
    """Asked together, whole and streamed."""
    repository = tmp_path / "model_repository"
    copy_models(ROOT / "model_repository", repository)
    assert build(BuildOptions("smollm2", repository), print).model_name == "smollm2"
    expected = expected_answers(fetch("smollm2", print))
    with (
        run_server(repository) as server,
        openai.OpenAI(base_url=server.openai_url, api_key="none", max_retries=0) as client,
        ThreadPoolExecutor(2 * len(CHATS)) as pool,
    ):

        def ask(chat: Any) -> Any:
            options: dict[str, Any] = {"model": "smollm2", "messages": chat, "temperature": 0, "max_tokens": MAX_TOKENS}
            return client.chat.completions.create(**options).choices[0].message.content

        def stream(chat: Any) -> str:
            options: dict[str, Any] = {"model": "smollm2", "messages": chat, "temperature": 0, "max_tokens": MAX_TOKENS}
            chunks: Any = client.chat.completions.create(stream=True, **options)
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

        whole, streamed = pool.map(ask, CHATS), pool.map(stream, CHATS)
        assert list(whole) == list(streamed) == expected
