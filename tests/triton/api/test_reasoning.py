"""What a model thinks is told apart from what it answers, on a server that is told how the model marks it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from openai_bls.launcher.testing import RunningServer
from tests.triton import triton_client
from tests.triton.playground.browser import Browser, opened
from tests.triton.reference import load_reference

pytestmark = pytest.mark.triton

# The demo model does not think, but it repeats what it is told, the markers too if they are made likelier.
THINKS: Any = [{"role": "user", "content": "Repeat after me: <think>blue tokens flow</think>yes"}]
JOKE: Any = [{"role": "user", "content": "Tell me a joke."}]


@pytest.fixture(scope="module")
def thinker(other_server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=other_server.openai_url, api_key="none", max_retries=0) as client:
        yield client


def body(messages: Any, **options: Any) -> dict[str, Any]:
    """A request whose answer begins with a thought; the demo takes one marker for the other, and a penalty decides."""
    (begin,), (end,) = load_reference().ids("<think>"), load_reference().ids("</think>")
    choice = {"temperature": 0, "logit_bias": {str(begin): 15, str(end): 14}, "presence_penalty": 2}
    return {"model": "openai_bls", "messages": messages, **choice, **options}


def streamed(client: openai.OpenAI, request: dict[str, Any]) -> tuple[str, str, list[str]]:
    """(thought, content, which of the two each delta was)."""
    thought, content, kinds = "", "", []
    stream: Any = client.chat.completions.create(stream=True, **request)
    for chunk in stream:
        delta = chunk.choices[0].delta
        piece = getattr(delta, "reasoning_content", None)
        assert getattr(delta, "reasoning", None) == piece
        thought += piece or ""
        content += delta.content or ""
        kinds += ["thought"] * bool(piece) + ["content"] * bool(delta.content)
    return thought, content, kinds


def test_whole_and_streamed(thinker: openai.OpenAI) -> None:
    answer: Any = thinker.chat.completions.create(**body(THINKS))
    message = answer.choices[0].message
    assert message.reasoning_content == message.reasoning == "blue tokens flow"
    assert message.content == "yes"
    assert answer.choices[0].finish_reason == "stop"
    # What comes once the thought is open, the closing marker too.
    thinking = len(load_reference().ids("blue tokens flow</think>"))
    assert answer.usage.completion_tokens_details.reasoning_tokens == thinking
    # The opening marker and the end are a token each.
    assert answer.usage.completion_tokens == 1 + thinking + len(load_reference().ids("yes")) + 1
    thought, content, kinds = streamed(thinker, body(THINKS))
    assert (thought, content) == ("blue tokens flow", "yes")
    assert kinds == sorted(kinds, reverse=True)
    assert kinds.count("thought") > 1


def test_a_form_is_asked_of_the_answer_only(thinker: openai.OpenAI) -> None:
    """The prompt has opened the thought, which goes on as it likes; then comes one of the choices."""
    (end,) = load_reference().ids("</think>")
    messages = [*JOKE, {"role": "assistant", "content": "<think>\n"}]
    extra = {"continue_final_message": True, "structured_outputs": {"choice": ["ha", "ho"]}}
    request = body(messages, logit_bias={str(end): 15}, max_tokens=100, extra_body=extra)
    answer: Any = thinker.chat.completions.create(**request)
    message = answer.choices[0].message
    assert message.content in ("ha", "ho")
    assert message.reasoning_content.startswith("Why do programmers")
    assert answer.choices[0].finish_reason == "stop"
    assert streamed(thinker, request)[:2] == (message.reasoning_content, message.content)


def test_on_triton(other_server: RunningServer) -> None:
    request = {name: value for name, value in body(THINKS).items() if name != "model"}
    answer = triton_client.chat(other_server.http_url, {"request": json.dumps(request)})
    assert answer["choices"][0]["message"]["reasoning_content"] == "blue tokens flow"
    assert answer["choices"][0]["message"]["content"] == "yes"
    chunks = triton_client.chat_stream(other_server.http_url, {"request": json.dumps(request)})
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "blue tokens flow"
    assert triton_client.content(chunks) == "yes"


def test_the_playground_folds_it(browser: Browser, other_server: RunningServer) -> None:
    with opened(browser, other_server.openai_url.removesuffix("v1")) as playground:
        page = playground.page
        chosen = {name: value for name, value in body(THINKS).items() if name != "messages"}
        # The page has no field for the bias that makes this model think.
        path = "**/chat/completions"
        page.route(path, lambda route: route.continue_(post_data=route.request.post_data_json | chosen))
        playground.ask(THINKS[0]["content"])
        assert playground.answers == ["yes"]
        assert not page.is_visible(".reasoning-text")
        page.click(".reasoning summary")
        assert page.inner_text(".reasoning-text") == "blue tokens flow"
