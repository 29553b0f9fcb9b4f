"""More requests than the engine takes: order, limits and deadlines on every door of a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from openai_bls.launcher.serving.forwarded_headers import forwarded_headers
from openai_bls.launcher.testing import RunningServer, run_server
from tests.triton import triton_client
from tests.triton.conversations import HELLO
from tests.triton.metrics import find, scrape
from tests.triton.triton_client import TritonError, infer_input
from tests.waiting import until as wait_until

pytestmark = pytest.mark.triton

# A step of the engine takes 20 ms, and it runs two sequences at once; one more is sent ahead.
SLOW = {
    "OPENAI_BLS_ENGINE": "null",
    "OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS": "20",
    "OPENAI_BLS_ENGINE_MAX_BATCH_SIZE": "2",
}
PLACES = 3
# Of shorter answers so many end in one step that two are sent ahead.
SHORT: Any = {"max_tokens": 4, "extra_body": {"ignore_eos": True}}
KEYS = """
many: many
other: other
full: full max_waiting_requests=2
single: single max_concurrent_requests=1
slow: slow requests_per_minute=3 tokens_per_minute=100000
small: small tokens_per_minute=30
"""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(KEYS)
    return file


@pytest.fixture(scope="module")
def server(repository: Path, keys: Path) -> Iterator[RunningServer]:
    env = {**SLOW, "OPENAI_BLS_API_KEYS_FILE": str(keys)}
    with run_server(repository, env=env, args=forwarded_headers(repository, [], env)) as running:
        # How many are sent ahead is learned from those that end; the first should not be one that is cancelled at once.
        with openai.OpenAI(base_url=running.openai_url, api_key="other") as first:
            first.chat.completions.create(
                model="openai_bls", messages=HELLO, max_tokens=40, extra_body={"ignore_eos": True}
            )
        yield running


@pytest.fixture
async def client(server: RunningServer) -> Any:
    async with openai.AsyncOpenAI(base_url=server.openai_url, api_key="other", max_retries=0, timeout=120) as made:
        yield made


class Stream:
    """A streamed chat completion under a key."""

    def __init__(self, client: openai.AsyncOpenAI, key: str, tokens: int = 10, messages: Any = HELLO) -> None:
        self._client = client.with_options(api_key=key)
        self._fields: dict[str, Any] = {"max_tokens": tokens, "messages": messages}
        self.began = asyncio.Event()
        self.reasons: list[str] = []
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        stream = await self._client.chat.completions.create(
            model="openai_bls", stream=True, extra_body={"ignore_eos": True}, **self._fields
        )
        async for chunk in stream:
            self.began.set()
            self.reasons += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]

    async def end(self) -> None:
        await self.task
        assert self.reasons == ["length"]


async def until(server: RunningServer, condition: Callable[[Any], bool]) -> None:
    """Wait until the metrics say so."""
    deadline = time.monotonic() + 60
    while not condition(await asyncio.to_thread(scrape, server)):
        assert time.monotonic() < deadline


def waiting(samples: Any) -> float:
    """Requests that wait in `openai_bls`, without those that wait in the engine."""
    return find(samples, "requests_waiting") - find(samples, "engine_sequences_waiting")


async def busy(server: RunningServer, client: openai.AsyncOpenAI, tokens: int = 2000) -> list[Stream]:
    """As many long streams of `many` as the engine takes, and one that waits."""
    streams = [Stream(client, "many", tokens) for _ in range(PLACES + 1)]
    await until(server, lambda samples: waiting(samples) == 1)
    return streams


async def leave(server: RunningServer, streams: list[Stream]) -> None:
    for stream in streams:
        stream.task.cancel()
    await asyncio.gather(*(stream.task for stream in streams), return_exceptions=True)
    await until(server, lambda samples: waiting(samples) == 0 and find(samples, "requests_in_progress") == 0)


async def test_a_key_with_many_streams_does_not_hold_up_another(
    server: RunningServer, client: openai.AsyncOpenAI
) -> None:
    # Each costs more than a quantum, so that keys take turns by the request, and lasts as long as the test.
    long: Any = {"tokens": 1500, "messages": [{"role": "user", "content": "Hello " * 260}]}
    running = [Stream(client, "many", **long) for _ in range(PLACES)]
    await until(server, lambda samples: find(samples, "requests_in_progress") - waiting(samples) == PLACES)
    queued = [Stream(client, "many", **long) for _ in range(6)]
    await until(server, lambda samples: waiting(samples) == 6)
    other = Stream(client, "other")
    await until(server, lambda samples: waiting(samples) == 7)
    for stream in running:
        stream.task.cancel()
    # It is the last one that came; three of `many` that came before it would leave it no place.
    await other.end()
    await until(server, lambda samples: waiting(samples) <= 6 - PLACES)
    await leave(server, queued)


async def test_within_a_key_the_lowest_priority_is_next(server: RunningServer, client: openai.AsyncOpenAI) -> None:
    running = [Stream(client, "many", 2000) for _ in range(PLACES)]
    await until(server, lambda samples: find(samples, "requests_in_progress") - waiting(samples) == PLACES)
    await until(server, lambda samples: sum(stream.began.is_set() for stream in running) == PLACES - 1)
    many = client.with_options(api_key="many")

    async def chat(fields: dict[str, Any], tokens: int) -> None:
        await many.chat.completions.create(model="openai_bls", messages=HELLO, max_tokens=tokens, extra_body=fields)

    async def completion(fields: dict[str, Any], tokens: int) -> None:
        await many.completions.create(model="openai_bls", prompt="Hello", max_tokens=tokens, extra_body=fields)

    async def response(fields: dict[str, Any], tokens: int) -> None:
        await many.responses.create(model="openai_bls", input="Hello", max_output_tokens=tokens, extra_body=fields)

    async def generate(fields: dict[str, Any], tokens: int) -> None:
        body = {"messages": json.dumps(HELLO), "api_key": "many", "max_tokens": tokens, **fields}
        await asyncio.to_thread(triton_client.chat, server.http_url, body)

    doors = ((7, chat), (3, completion), (0, chat), (-1, response), (-2, generate))
    priority_of, tasks, logged = dict[int, int](), [], len(server.log_path.read_text())
    for count, (priority, ask) in enumerate(doors, 1):
        # Of the default priority is what names none. By its length each is found in the log.
        tokens = 30 + count
        priority_of[tokens] = priority
        fields = {"ignore_eos": True, **({"priority": priority} if priority else {})}
        tasks.append(asyncio.create_task(ask(fields, tokens)))
        await until(server, lambda samples, count=count: waiting(samples) == count)  # type: ignore[misc]
    # The stream that was sent ahead takes one of the engine's two places, and they have the other.
    for stream in running:
        if stream.began.is_set():
            stream.task.cancel()
    await asyncio.gather(*tasks)
    ended = await asyncio.to_thread(wait_until, lambda: of_lengths(server.log_path.read_text()[logged:], priority_of))
    assert [priority_of[tokens] for tokens in ended] == [-2, -1, 0, 3, 7]
    await leave(server, running)


def of_lengths(log: str, lengths: Collection[int]) -> list[int]:
    """Generated tokens of the requests of these lengths, in the order of their ends; none until all have ended.

    A stream that was cancelled may have as many.
    """
    found = [int(tokens) for tokens in re.findall(r" generated_tokens=(\d+) .* finish_reason=length\n", log)]
    ended = [tokens for tokens in found if tokens in lengths]
    return ended if len(ended) == len(lengths) else []


def refusals(server: RunningServer) -> list[str]:
    """Lines of the request log about the key `full`, whose streams have not ended."""
    return [line for line in server.log_path.read_text().splitlines() if " key=full " in line]


async def test_a_full_queue_is_a_429_with_the_time_to_wait(server: RunningServer, client: openai.AsyncOpenAI) -> None:
    streams = await busy(server, client)
    streams += [Stream(client, "full") for _ in range(2)]
    await until(server, lambda samples: waiting(samples) == 3)
    refused = find(scrape(server), "requests_refused_total", reason="queue_full", key="full")
    full = client.with_options(api_key="full")
    with pytest.raises(openai.RateLimitError) as caught:
        await full.chat.completions.create(model="openai_bls", messages=HELLO)
    assert (caught.value.type, caught.value.code) == ("requests", "rate_limit_exceeded")
    assert int(caught.value.response.headers["retry-after"]) >= 1
    # The same on every other door.
    body: dict[str, Any] = {"messages": json.dumps(HELLO), "api_key": "full", "max_tokens": 2}
    for stream in (False, True):
        with pytest.raises(TritonError) as http:
            await asyncio.to_thread(
                lambda s=stream: list(  # type: ignore[misc]
                    triton_client.generate_stream(server.http_url, "openai_bls", {**body, "stream": s})
                )
            )
        assert http.value.body["error"]["code"] == "rate_limit_exceeded"
    inputs = [infer_input("messages", [json.dumps(HELLO)], "BYTES")]
    with pytest.raises(TritonError, match="rate_limit_exceeded"):
        await asyncio.to_thread(triton_client.grpc_chat, server.grpc_url, inputs, {"api_key": "full"})
    samples = scrape(server)
    assert find(samples, "requests_refused_total", reason="queue_full", key="full") == refused + 4
    assert find(samples, "requests_total", key="full", outcome="429") == refused + 4
    lines = await asyncio.to_thread(wait_until, lambda: found if len(found := refusals(server)) == 4 else None)
    assert [" ".join(line.split()[1:4]) for line in lines] == ["POST /v1/chat/completions 429"] + [
        "TRITON openai_bls 429"
    ] * 3
    assert all("error=rate_limit_exceeded" in line for line in lines)
    await leave(server, streams)


async def test_limits_of_a_key(server: RunningServer, client: openai.AsyncOpenAI, keys: Path) -> None:
    running = Stream(client, "single", 2000)
    await running.began.wait()
    single = client.with_options(api_key="single")
    with pytest.raises(openai.RateLimitError) as refused:
        await single.chat.completions.create(model="openai_bls", messages=HELLO)
    assert refused.value.type == "requests"
    assert find(scrape(server), "requests_refused_total", reason="concurrent_requests", key="single")
    await leave(server, [running])
    slow = client.with_options(api_key="slow")
    for left in (2, 1, 0):
        raw = await slow.chat.completions.with_raw_response.create(model="openai_bls", messages=HELLO, **SHORT)
        assert raw.headers["x-ratelimit-limit-requests"] == "3"
        assert raw.headers["x-ratelimit-remaining-requests"] == str(left)
        assert raw.headers["x-ratelimit-limit-tokens"] == "100000"
    with pytest.raises(openai.RateLimitError) as caught:
        await slow.chat.completions.create(model="openai_bls", messages=HELLO, **SHORT)
    assert caught.value.code == "rate_limit_exceeded"
    # One comes in every 20 s.
    assert 15 <= int(caught.value.response.headers["retry-after"]) <= 20
    small = client.with_options(api_key="small")
    with pytest.raises(openai.RateLimitError) as caught:
        await small.completions.create(model="openai_bls", prompt="word " * 100)
    # There is no waiting for a budget that is too small.
    assert (caught.value.type, caught.value.response.headers.get("retry-after")) == ("tokens", None)
    # A file that has changed counts for requests that come, and says nothing about those that have been.
    text = KEYS.replace("requests_per_minute=3", "requests_per_minute=1000")
    (keys.parent / "new").write_text(text)
    (keys.parent / "new").rename(keys)
    deadline = time.monotonic() + 60
    while True:
        try:
            await slow.chat.completions.create(model="openai_bls", messages=HELLO, **SHORT)
        except openai.RateLimitError:
            assert time.monotonic() < deadline
        else:
            break
    samples = scrape(server)
    for key, reason in (
        ("single", "concurrent_requests"), ("slow", "requests_per_minute"), ("small", "tokens_per_minute"),
    ):  # fmt: skip
        assert find(samples, "requests_refused_total", reason=reason, key=key) >= 1


def test_limits_of_a_key_on_the_text_model(server: RunningServer) -> None:
    """`tensorrt_llm_bls` counts by itself."""
    body = {"text_input": "Hello", "max_tokens": 2000, "end_id": -1, "stream": True, "api_key": "single"}
    further = {**body, "stream": False, "max_tokens": 2}
    url = f"{server.http_url}/v2/models/tensorrt_llm_bls/generate_stream"
    refusal = ""
    while not refusal:
        with httpx.stream("POST", url, json=body, timeout=60) as response:
            events = response.iter_bytes()
            # An error would hold no place.
            assert b'"text_output"' in next(events)
            try:
                triton_client.generate(server.http_url, "tensorrt_llm_bls", further)
            except TritonError as error:
                refusal = str(error)
            else:
                # The machine is so busy that the stream of 40 s has ended: once more. If nothing is ever refused, the
                # time limit of a test ends this.
                b"".join(events)
    assert " 1 requests in progress" in refusal
    # Until it is seen that the client has gone. tritonserver 2.51 crashes if it is stopped before that.
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(TritonError):
            triton_client.generate(server.http_url, "tensorrt_llm_bls", further)
            break
        assert time.monotonic() < deadline


async def test_a_deadline_while_a_request_waits(server: RunningServer, client: openai.AsyncOpenAI) -> None:
    missed = find(scrape(server), "deadlines_missed_total", stage="waiting")
    streams = await busy(server, client)
    for options in ({"extra_body": {"timeout": 0.2}}, {"extra_headers": {"x-request-timeout": "0.2"}}):
        for stream in (False, True):
            with pytest.raises(openai.APIStatusError) as caught:
                await client.chat.completions.create(model="openai_bls", messages=HELLO, stream=stream, **options)
            # Too late by what was measured, or by the clock.
            assert (caught.value.status_code, caught.value.code) in (
                (504, "deadline_exceeded"),
                (429, "rate_limit_exceeded"),
            )
    samples = scrape(server)
    late = find(samples, "requests_refused_total", reason="too_late")
    assert find(samples, "deadlines_missed_total", stage="waiting") - missed + late == 4
    steps = find(samples, "requests_total", outcome="504")
    assert steps >= find(samples, "deadlines_missed_total", stage="waiting") - missed
    await leave(server, streams)


async def test_a_deadline_while_a_request_is_answered(server: RunningServer, client: openai.AsyncOpenAI) -> None:
    options: dict[str, Any] = {"model": "openai_bls", "messages": HELLO, "max_tokens": 2000}
    with pytest.raises(openai.APIStatusError) as caught:
        await client.chat.completions.create(**options, extra_body={"timeout": 0.3, "ignore_eos": True})
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    stream = await client.chat.completions.create(**options, stream=True, extra_body={"timeout": 1, "ignore_eos": True})
    with pytest.raises(openai.APIError) as event:
        async for _ in stream:
            pass
    assert event.value.code == "deadline_exceeded"
    # On generate the field is a parameter, on gRPC Triton has one of its own, in microseconds.
    body = {"messages": json.dumps(HELLO), "max_tokens": 2000, "ignore_eos": True, "api_key": "other"}
    with pytest.raises(TritonError, match="deadline_exceeded"):
        await asyncio.to_thread(triton_client.chat, server.http_url, {**body, "timeout": 0.3})
    text = {"text_input": "Hello", "max_tokens": 2000, "end_id": -1, "api_key": "other"}
    with pytest.raises(TritonError, match=r"timeout of 0\.3 s"):
        await asyncio.to_thread(triton_client.generate, server.http_url, "tensorrt_llm_bls", {**text, "timeout": 0.3})
    with pytest.raises(TritonError, match="'timeout'"):
        await asyncio.to_thread(triton_client.generate, server.http_url, "tensorrt_llm_bls", {**text, "timeout": "1"})
    infer: dict[str, Any] = {
        "inputs": [{"name": "messages", "datatype": "BYTES", "shape": [1], "data": [json.dumps(HELLO)]}],
        "parameters": {"timeout": 300_000, "max_tokens": 2000, "ignore_eos": True, "api_key": "other"},
    }
    stream_infer = triton_client.GrpcStream(server.grpc_url)
    with stream_infer as grpc:
        grpc.send(
            "openai_bls",
            [infer_input("messages", [json.dumps(HELLO)], "BYTES")],
            {name: value for name, value in infer["parameters"].items() if name != "timeout"},
            timeout_us=300_000,
        )
        with pytest.raises(TritonError, match="deadline_exceeded"):
            list(grpc.responses())
    # Over gRPC the header of /v1 counts as well.
    messages = [infer_input("messages", [json.dumps(HELLO)], "BYTES")]
    texts = [
        infer_input("text_input", [[b"Hello"]], "BYTES"),
        infer_input("max_tokens", np.array([[2000]], np.int32), "INT32"),
        infer_input("end_id", np.array([[-1]], np.int32), "INT32"),
    ]
    for model, inputs, parameters in (
        ("openai_bls", messages, {"max_tokens": 2000, "ignore_eos": True}),
        ("tensorrt_llm_bls", texts, {}),
    ):
        for value, message in (("0.3", "deadline_exceeded|0.3 s"), ("soon", "'x-request-timeout'")):
            with triton_client.GrpcStream(server.grpc_url, {"x-request-timeout": value}) as grpc:
                grpc.send(model, inputs, {**parameters, "api_key": "other"})
                with pytest.raises(TritonError, match=message):
                    list(grpc.responses())
    # The engine is free again.
    await until(server, lambda samples: find(samples, "requests_in_progress") == 0)
    assert find(scrape(server), "deadlines_missed_total", stage="generating", key="other") >= 3


async def test_two_instances_have_the_limits_each(two_instances: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("single: single max_concurrent_requests=1\n")
    env = {**SLOW, "OPENAI_BLS_API_KEYS_FILE": str(tmp_path / "keys")}
    with run_server(two_instances, env=env) as server:
        # A connection each, which the system gives to either instance.
        clients = [openai.AsyncOpenAI(base_url=server.openai_url, api_key="single", max_retries=0) for _ in range(24)]
        streams = [Stream(client, "single", 1000) for client in clients]
        done: set[Any] = set()
        while len(done) < 22:
            done, _ = await asyncio.wait([stream.task for stream in streams], return_when=asyncio.FIRST_COMPLETED)
            done = {stream.task for stream in streams if stream.task.done()}
            await asyncio.sleep(0)
        assert all(isinstance(task.exception(), openai.RateLimitError) for task in done)
        assert find(scrape(server), "requests_in_progress") == 2
        for stream, client in zip(streams, clients, strict=True):
            stream.task.cancel()
            await client.close()
        await asyncio.gather(*(stream.task for stream in streams), return_exceptions=True)
