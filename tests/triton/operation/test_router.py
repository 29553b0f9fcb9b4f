"""Routers in front of two servers: conversations find their cache, and one server's death is nobody else's.

`make router` installs the routers and runs this; it takes a few minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest

from openai_bls.launcher.testing import RunningServer, ServerFailedError, run_server
from tests.triton.metrics import find, scrape
from tests.triton.operation.router_process import COMMANDS, free_port, running_router
from tests.waiting import until

pytestmark = [pytest.mark.triton, pytest.mark.router, pytest.mark.timeout(3600)]

CONVERSATIONS, TURNS, AT_ONCE = 40, 10, 16
# Half of the conversations fit, and not all of them.
CACHE_TOKENS = 8192
PAGE_TOKENS = 32
DEMO = Path(__file__).resolve().parents[3] / "demo" / "checkpoint"
QUESTIONS = (
    "What is machine learning?",
    "Tell me a story about a fox.",
    "What is the capital of France?",
    "Say more about it, please.",
    "Why is that so?",
    "Give me an example of it.",
    "What else is there?",
    "And how does it end?",
    "Explain it to a child.",
    "Thank you, what did we talk about?",
)


class Place(NamedTuple):
    """A server with the ports of its KV events."""

    server: RunningServer
    events: int
    replay: int

    @property
    def url(self) -> str:
        return self.server.openai_url.removesuffix("/v1")


class Answers(NamedTuple):
    """What a run of all conversations brought."""

    texts: list[list[str]]
    prompt_tokens: int
    cached_tokens: int

    @property
    def hits(self) -> float:
        """Share of the prompt tokens found in a prefix cache."""
        return self.cached_tokens / self.prompt_tokens


@contextlib.contextmanager
def place(repository: Path) -> Iterator[Place]:
    events, replay = free_port(), free_port()
    env = {
        "OPENAI_BLS_ENGINE_MAX_TOKENS_IN_KV_CACHE": str(CACHE_TOKENS),
        "OPENAI_BLS_ENGINE_KV_EVENTS_ENDPOINT": f"tcp://*:{events}",
        "OPENAI_BLS_ENGINE_KV_EVENTS_REPLAY_ENDPOINT": f"tcp://*:{replay}",
    }
    with run_server(repository, env=env) as server:
        yield Place(server, events, replay)


@pytest.fixture(scope="module")
def places(repository: Path) -> Iterator[list[Place]]:
    with place(repository) as first, place(repository) as second:
        yield [first, second]


def of_events(places: list[Place]) -> list[str]:
    """Arguments of the router for the policy that follows KV events."""
    found = ["--kv-event-block-size", str(PAGE_TOKENS), "--kv-event-model", str(DEMO)]
    for one in places:
        found += ["--kv-event-source", f"{one.url}=tcp://127.0.0.1:{one.events}"]
        found += ["--kv-event-replay-source", f"{one.url}=tcp://127.0.0.1:{one.replay}"]
    return found


async def conversations(url: str) -> Answers:
    turn = asyncio.Semaphore(AT_ONCE)
    counts = [0, 0]

    async def conversation(client: openai.AsyncOpenAI, number: int) -> list[str]:
        told = f"You are assistant number {number} of a large company, and answer questions about everything."
        messages: Any = [{"role": "system", "content": told}]
        texts = []
        for at in range(TURNS):
            messages.append({"role": "user", "content": QUESTIONS[(number + at) % len(QUESTIONS)]})
            async with turn:
                answer = await client.chat.completions.create(
                    model="demo", messages=messages, max_tokens=8, temperature=0, extra_body={"ignore_eos": True}
                )
            usage = answer.usage
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            counts[0] += usage.prompt_tokens
            counts[1] += usage.prompt_tokens_details.cached_tokens or 0
            texts.append(answer.choices[0].message.content or "")
            messages.append({"role": "assistant", "content": texts[-1]})
        return texts

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600) as client:
        texts = await asyncio.gather(*(conversation(client, number) for number in range(CONVERSATIONS)))
    return Answers(list(texts), *counts)


async def test_conversations_find_their_cache(places: list[Place], tmp_path: Path) -> None:
    async def run(router: str, policy: str) -> Answers:
        for one in places:
            httpx.post(f"{one.url}/reset_prefix_cache", timeout=60).raise_for_status()
        arguments = of_events(places) if policy == "kv_aware" else []
        urls = [one.url for one in places]
        with running_router(router, urls, policy, tmp_path / f"{router}-{policy}.log", *arguments) as url:
            return await conversations(url)

    alone = await conversations(places[0].url)
    answers = {
        (router, policy): await run(router, policy)
        for router, policy in (
            ("vllm-router", "round_robin"),
            ("vllm-router", "cache_aware"),
            ("vllm-router", "kv_aware"),
            ("sglang-router", "cache_aware"),
        )
    }
    figures = {name: f"{found.hits:.3f} of {found.prompt_tokens}" for name, found in answers.items()}
    print(f"one server: {alone.hits:.3f} of {alone.prompt_tokens}; {figures}")  # noqa: T201
    # Whichever server a turn went to.
    assert {name for name, found in answers.items() if found.texts != alone.texts} == set()
    in_turn = answers["vllm-router", "round_robin"].hits
    assert answers["vllm-router", "cache_aware"].hits > in_turn + 0.1, figures
    assert answers["sglang-router", "cache_aware"].hits > in_turn + 0.1, figures
    assert answers["vllm-router", "kv_aware"].hits > in_turn, figures


def test_a_router_knows_what_a_server_serves(places: list[Place], tmp_path: Path) -> None:
    """Before it has another model's server next to it."""
    with running_router("sglang-router", [places[0].url], "round_robin", tmp_path / "log") as url:
        models = httpx.get(f"{url}/v1/models", timeout=60).json()
    assert [model["id"] for model in models["data"]] == ["demo"]


class Stream:
    """A long streamed completion through the router."""

    def __init__(self, client: openai.AsyncOpenAI, number: int) -> None:
        self.fields: Any = {
            "model": "demo",
            "prompt": f"Story number {number}:",
            "max_tokens": 600,
            "temperature": 0,
            "extra_body": {"ignore_eos": True},
        }
        self.text, self.reason, self.error = "", "", ""
        self.began = asyncio.Event()
        self.task = asyncio.create_task(self._run(client))

    async def _run(self, client: openai.AsyncOpenAI) -> None:
        try:
            async for chunk in await client.completions.create(stream=True, **self.fields):
                self.began.set()
                for choice in chunk.choices:
                    self.text += choice.text
                    self.reason = choice.finish_reason or self.reason
        except (openai.APIError, httpx.TransportError) as error:
            self.error = repr(error)


@pytest.mark.parametrize("router", COMMANDS)
async def test_a_server_that_is_killed_ends_its_own_streams_alone(
    router: str, places: list[Place], repository: Path, tmp_path: Path
) -> None:
    stays = places[0]
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(ServerFailedError))
        dies = stack.enter_context(place(repository))
        url = stack.enter_context(running_router(router, [stays.url, dies.url], "round_robin", tmp_path / "log"))
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600) as client:
            streams = [Stream(client, number) for number in range(8)]
            await asyncio.gather(*(stream.began.wait() for stream in streams))
            here = find(await asyncio.to_thread(scrape, stays.server), "requests_in_progress")
            os.kill(dies.server.pid, signal.SIGKILL)
            await asyncio.gather(*(stream.task for stream in streams))
            whole = [stream for stream in streams if stream.reason == "length"]
            assert (here, len(whole)) == (4, 4), [(stream.reason, stream.error) for stream in streams]
            # From now on all go to the other one.
            for number in range(6):
                answer = await client.completions.create(model="demo", prompt=f"After {number}", max_tokens=2)
                assert answer.choices[0].finish_reason == "length"
        async with openai.AsyncOpenAI(base_url=f"{stays.url}/v1", api_key="none", timeout=600) as client:
            for stream in whole:
                assert (await client.completions.create(**stream.fields)).choices[0].text == stream.text
        until(lambda: find(scrape(stays.server), "requests_in_progress") == 0)
