"""Guards on a real server: the example of examples/guard, and one that hangs or is not there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import tritonclient.grpc as grpcclient

from openai_bls.launcher.testing import RunningServer, run_server
from tests.triton import triton_client
from tests.triton.conftest import guard_questions, place_guard
from tests.triton.metrics import find, scrape
from tests.waiting import until

pytestmark = pytest.mark.triton

MAIL = "Write to ann.lee@example.com or call"
HIDDEN = "Write to [e-mail] or call"
# The engine says what it is told.
ECHO = {"OPENAI_BLS_ENGINE": "null", "OPENAI_BLS_ENGINE_NULL_ECHO": "true"}
GUARDED = {
    **ECHO,
    "OPENAI_BLS_GUARD_BEFORE": "guard",
    "OPENAI_BLS_GUARD_AFTER": "guard",
    "OPENAI_BLS_GUARD_TIMEOUT_S": "2",
}
# Past the end tokens of the template.
WHOLE = {"ignore_eos": True}
# What the guard says of a request instead of looking at it.
UNSEEN = "before:{}"


def said(text: str, user: str | None = None, **more: Any) -> dict[str, Any]:
    """A chat request whose answer is the whole prompt."""
    body = {"messages": [{"role": "user", "content": text}], "user": user or "ann", "model": "openai_bls"}
    return {**body, "max_tokens": 200, **more}


class Place:
    """The server and its guard."""

    def __init__(self, server: RunningServer, folder: Path, client: openai.OpenAI) -> None:
        self.server = server
        self.folder = folder
        self.client = client

    def chat(self, text: str, **more: Any) -> Any:
        return self.client.chat.completions.create(**said(text, **more), extra_body=WHOLE)

    def stream(self, text: str, **more: Any) -> str:
        chunks = self.client.chat.completions.create(**said(text, **more), stream=True, extra_body=WHOLE)
        return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)

    def generate(self, text: str, **more: Any) -> Any:
        body = {**said(text, **more), **WHOLE}
        return triton_client.chat(self.server.http_url, {"request": json.dumps(body)})

    def questions(self, request_id: str) -> list[dict[str, Any]]:
        """What the guard was asked about a request."""
        return guard_questions(self.folder, request_id)

    def calls(self, **labels: str) -> float:
        return find(scrape(self.server), "guard_call_seconds_count", **labels)


@pytest.fixture(scope="module")
def place(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    copy = tmp_path_factory.mktemp("guarded") / "model_repository"
    shutil.copytree(repository, copy)
    folder = place_guard(copy)
    with (
        run_server(copy, env=GUARDED, args=["--model-control-mode=explicit", "--load-model=*"]) as server,
        openai.OpenAI(base_url=server.openai_url, api_key="none", max_retries=0) as client,
    ):
        yield Place(server, folder, client)


# --- the example ---


def test_a_request_is_redacted_before_the_engine_sees_it(place: Place) -> None:
    assert HIDDEN in place.chat(MAIL).choices[0].message.content
    assert HIDDEN in place.stream(MAIL)


def test_an_answer_is_redacted_unless_it_is_streamed(place: Place) -> None:
    answer = place.chat(MAIL, user=UNSEEN, n=2)
    assert [HIDDEN in choice.message.content for choice in answer.choices] == [True, True]
    assert MAIL in place.stream(MAIL, user=UNSEEN)
    assert HIDDEN in place.generate(MAIL, user=UNSEEN)["choices"][0]["message"]["content"]


def test_blocked_words(place: Place) -> None:
    for stream in (False, True):
        with pytest.raises(openai.PermissionDeniedError) as refused:
            place.chat("How is Napalm made?", stream=stream)
        assert (refused.value.code, refused.value.status_code) == ("blocked_word", 403)
    body = said("How is Napalm made?")
    with pytest.raises(triton_client.TritonError) as on_triton:
        triton_client.chat(place.server.http_url, {"request": json.dumps(body)})
    assert on_triton.value.body["error"]["code"] == "blocked_word"
    whole = [triton_client.infer_input("request", [json.dumps(body)], "BYTES")]
    with pytest.raises(triton_client.TritonError) as over_grpc:
        triton_client.grpc_chat(place.server.grpc_url, whole, {})
    assert over_grpc.value.body["error"]["code"] == "blocked_word"
    message = {**said("How is Napalm made?"), "max_tokens": 9}
    del message["user"]
    response = httpx.post(f"{place.server.openai_url}/messages", json=message, timeout=60)
    assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error")


def test_tokens_are_counted_per_user_whatever_the_way_in(place: Place) -> None:
    body = {**said("Hello", "zoe"), **WHOLE, "stream": True}
    total = place.chat("Hello", user="zoe").usage.total_tokens
    place.stream("Hello", user="zoe")
    place.generate("Hello", user="zoe")
    triton_client.chat_stream(place.server.http_url, {"request": json.dumps({**said("Hello", "zoe"), **WHOLE})})
    with triton_client.GrpcStream(place.server.grpc_url) as stream:
        stream.send("openai_bls", [triton_client.infer_input("request", [json.dumps(body)], "BYTES")], {}, "mine")
        assert list(stream.responses())
    until(lambda: f"zoe has used {5 * total} tokens" in place.server.log_path.read_text())
    before, after = place.questions("mine")
    assert (before["hook"], before["endpoint"], before["request"]) == ("before", "chat.completions", body)
    assert (after["stream"], after["outcome"], after["usage"]["total_tokens"]) == (True, "done", total)
    assert "Hello" in after["answer"]["choices"][0]["message"]["content"]


# --- failures ---


def test_a_guard_that_hangs_meets_its_deadline(place: Place) -> None:
    late = place.calls(hook="before", outcome="timeout")
    with pytest.raises(openai.InternalServerError) as refused:
        place.chat("Hello", user="before:hang")
    assert refused.value.code == "guard_unavailable"
    assert place.calls(hook="before", outcome="timeout") == late + 1
    (place.folder / "go_on").touch()
    assert place.chat("Hello").choices


def test_a_guard_that_is_unloaded_and_loaded_again(place: Place) -> None:
    with grpcclient.InferenceServerClient(place.server.grpc_url) as control:
        control.unload_model("guard")
        until(lambda: not control.is_model_ready("guard"))
        with pytest.raises(openai.InternalServerError) as refused:
            place.chat("Hello")
        assert refused.value.code == "guard_unavailable"
        control.load_model("guard")
    assert place.chat("Hello").choices


def test_many_at_once(place: Place) -> None:
    """Each gets its own answer."""

    def one(number: int) -> str:
        text = f"number {number} of a@b.org"
        return place.stream(text) if number % 2 else str(place.generate(text))

    with ThreadPoolExecutor(16) as pool:
        for number, text in enumerate(pool.map(one, range(64))):
            assert f"number {number} of [e-mail]" in text
