"""Speculative decoding over the real server: OpenAI's predicted outputs by the official SDK."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionPredictionContentParam

from openai_bls.launcher.testing import RunningServer, run_server
from tests.triton.conftest import SHORT_CHATS, Golden
from tests.triton.metrics import find, scrape
from tests.waiting import until


@pytest.fixture(scope="module")
def speculating(repository: Path) -> Iterator[RunningServer]:
    """A server whose engine drafts by n-grams."""
    with run_server(repository, env={"OPENAI_BLS_ENGINE_SPECULATIVE_METHOD": "ngram"}) as running:
        yield running


def content(text: str) -> ChatCompletionPredictionContentParam:
    return {"type": "content", "content": text}


def drafted(server: RunningServer) -> tuple[float, float]:
    """Tokens drafted and accepted, which the server knows about a second later."""
    samples = scrape(server)
    names = ("num_draft_tokens", "num_accepted_tokens")
    drafts, accepted = (find(samples, f"engine_spec_decode_{name}_total", model="demo") for name in names)
    return drafts, accepted


def ask(client: openai.OpenAI, golden: Golden, **more: Any) -> Any:
    """A greedy answer, which is the golden one, whatever was predicted."""
    options: dict[str, Any] = {"model": "demo", "messages": golden.messages, "temperature": 0, "max_tokens": 80}
    answer = client.chat.completions.create(**options, **more)
    if not more.get("stream"):
        assert answer.choices[0].message.content == golden.answer
        assert answer.usage.completion_tokens == golden.tokens
    return answer


def test_predicted_outputs(speculating: RunningServer) -> None:
    """Right, wrong from the middle on, and in parts: usage tells."""
    with openai.OpenAI(base_url=speculating.openai_url, api_key="none", max_retries=0) as client:
        for golden in SHORT_CHATS[:3]:
            middle = len(golden.answer) // 2
            parts = [{"type": "text", "text": golden.answer[:middle]}, {"type": "text", "text": "Zz " * 30}]
            right = ask(client, golden, prediction=content(golden.answer)).usage.completion_tokens_details
            # The end token is in no prediction.
            assert right.accepted_prediction_tokens == golden.tokens - (golden.finish == "stop")
            assert right.rejected_prediction_tokens == 0
            half = ask(client, golden, prediction={"type": "content", "content": parts}).usage.completion_tokens_details
            assert 0 < half.accepted_prediction_tokens < golden.tokens
            assert half.rejected_prediction_tokens >= 30
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(ask(client, golden, prediction=content(golden.answer), **usage))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == golden.answer
        assert chunks[-1].usage.completion_tokens_details.accepted_prediction_tokens
        assert ask(client, golden).usage.completion_tokens_details.accepted_prediction_tokens is None
    # Wrong from the middle on, so that fewer are accepted than drafted.
    until(lambda: 0 < drafted(speculating)[1] < drafted(speculating)[0])


def test_a_prediction_needs_the_setting(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="OPENAI_BLS_ENGINE_SPECULATIVE_METHOD=ngram") as info:
        client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "x"}], prediction=content("y")
        )
    assert (info.value.param, info.value.code) == ("prediction", "unsupported_parameter")
