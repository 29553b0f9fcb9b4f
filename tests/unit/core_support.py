"""Stand-ins for what the core modules talk to: an engine, preprocessing, a stream's reader; and a tiny tokenizer."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from openai_bls.api.chat.validation import parse_object
from openai_bls.api.common.events.event_sink import TextEncoder
from openai_bls.core.engine import EngineStats, LoraError, StepListener
from openai_bls.core.engine_types import (
    EngineInfo,
    GenerationRequest,
    Logprobs,
    PromptRequest,
    PromptResult,
    TokenDelta,
)
from openai_bls.core.errors import ApiError
from openai_bls.core.request import ValidRequest
from openai_bls.core.request_record import RequestRecord
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.core.usage import Usage
from openai_bls.engines.capabilities import ALL_FIELDS
from openai_bls.output.detect import ModelFormats, detect
from openai_bls.output.detokenizer import factory
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import Models, ServedModel
from openai_bls.pipeline.service import Service
from openai_bls.transport.ipc import sockets
from tests.fakes.model_calls import FakeModelCalls

_numbers = itertools.count()

WAIT_S = 20.0
"""For waits that end as soon as the condition holds: generous, since the machine may be busy."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'forbidden' %}{{ raise_exception('no forbidden role') }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if thinking is defined %}{{ thinking }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


async def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_S
    turns = 0
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        # Mostly it takes a few turns of the loop.
        turns += 1
        await asyncio.sleep(0 if turns < 50 else 0.001)


@cache
def tiny_tokenizer() -> Tokenizer:
    """A token a byte, ChatML's special tokens, and the markers of tool calls."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: at for at, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ("<tool_call>", "</tool_call>")])
    return tokenizer


@cache
def tiny_detokenizers() -> factory.DetokenizerFactory:
    return factory.from_tokenizer(tiny_tokenizer())


EOS: int = tiny_tokenizer().get_vocab()["<|im_end|>"]
VOCAB_SIZE: int = tiny_tokenizer().get_vocab_size()


def token_ids(text: str) -> list[int]:
    ids: list[int] = tiny_tokenizer().encode(text, add_special_tokens=False).ids
    return ids


def write_tokenizer(folder: Path, chat_template: str | None = CHAT_TEMPLATE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": chat_template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def engine_info(**changes: Any) -> EngineInfo:
    values: dict[str, Any] = {
        "engine": "fake",
        "model_name": "tiny",
        "max_model_len": 1000,
        "max_batch_size": 8,
        "vocab_size": VOCAB_SIZE,
        "eos_token_ids": (EOS,),
        "supported": ALL_FIELDS,
        "max_logprobs": 20,
        "grammar_backend": "llguidance",
        "version": "fake 1",
        "created": 7,
    }
    return EngineInfo(**(values | changes))


class FakeEngine:
    """An `Engine` whose steps the test makes; like a real one it ends every request exactly once."""

    def __init__(self, on_step: StepListener, info: EngineInfo | None = None) -> None:
        self._on_step = on_step
        self._info = info or engine_info()
        self._lock = threading.Lock()
        self.live: dict[int, GenerationRequest] = {}
        self.submitted: list[GenerationRequest] = []
        self.cancelled: list[int] = []
        self.closed = False
        self.prefix_resets = 0
        self.prefix_refusal: Exception | None = None
        self.changed = threading.Condition()

    @property
    def info(self) -> EngineInfo:
        return self._info

    def submit(self, request: GenerationRequest) -> None:
        self.submitted.append(request)
        if self.closed:
            self._on_step([TokenDelta(request.request_id, [], finish_reason="cancelled")])
            return
        with self._lock:
            self.live[request.request_id] = request
        self._notify()

    def cancel(self, request_id: int) -> None:
        self.cancelled.append(request_id)
        with self._lock:
            known = self.live.pop(request_id, None)
        if known is not None:
            self._on_step([TokenDelta(request_id, [], finish_reason="cancelled")])
        self._notify()

    def stats(self) -> EngineStats:
        return EngineStats(len(self.live), 0, 0.0, 0, 0)

    def load_lora(self, name: str, path: str) -> None:
        if path == "bad":
            raise LoraError("the adapter is bad")
        if path == "broken":
            raise RuntimeError(path)
        self._info = msgspec.structs.replace(self._info, lora_names=(*self._info.lora_names, name))

    def unload_lora(self, name: str) -> None:
        left = tuple(other for other in self._info.lora_names if other != name)
        self._info = msgspec.structs.replace(self._info, lora_names=left)

    def reset_prefix_cache(self) -> None:
        self.prefix_resets += 1
        if self.prefix_refusal is not None:
            raise self.prefix_refusal

    def close(self) -> None:
        self.closed = True
        for request_id in list(self.live):
            self.cancel(request_id)

    def step(self, *deltas: TokenDelta) -> None:
        """What one step brings; deltas of requests that have ended are left out, as a real engine would."""
        with self._lock:
            alive = [delta for delta in deltas if delta.request_id in self.live]
            for delta in alive:
                if delta.finish_reason is not None:
                    self.live.pop(delta.request_id)
        if alive:
            self._on_step(alive)

    def wait_for(self, condition: Callable[[], object]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S)

    def _notify(self) -> None:
        with self.changed:
            self.changed.notify_all()


class FakeEngineClient:
    """An `EngineClient` whose deltas the test delivers."""

    def __init__(self) -> None:
        self.stats: EngineStats | None = None
        self.connected = True
        self.requests: list[GenerationRequest] = []
        self.listeners: dict[int, Callable[[TokenDelta], None]] = {}
        self.cancelled: list[int] = []
        self.lora_updates: list[tuple[str, str]] = []
        self.prefix_resets = 0
        self._next = 0

    async def ready(self) -> None:
        pass

    async def update_lora(self, name: str, path: str) -> None:
        self.lora_updates.append((name, path))

    async def reset_prefix_cache(self) -> None:
        self.prefix_resets += 1

    def new_request_id(self) -> int:
        self._next += 1
        return self._next

    def submit(self, request: GenerationRequest, listener: Callable[[TokenDelta], None]) -> None:
        self.requests.append(request)
        self.listeners[request.request_id] = listener

    def cancel(self, request_id: int) -> None:
        if self.listeners.pop(request_id, None) is not None:
            self.cancelled.append(request_id)

    def deliver(
        self,
        at: int,
        tokens: str | list[int],
        finish_reason: Any = None,
        *,
        stop_token_id: int | None = None,
        error: str | None = None,
        invalid: bool = False,
        **more: Any,
    ) -> None:
        """A delta for the request submitted as number `at`, if anybody still listens.

        With log-probabilities each token has -0.5, and its successors are the likeliest: -0.1, -0.2 and so on.
        """
        request_id = self.requests[at].request_id
        listener = self.listeners.get(request_id)
        if finish_reason is not None:
            self.listeners.pop(request_id, None)
        if listener is not None:
            ids = token_ids(tokens) if isinstance(tokens, str) else tokens
            wanted = self.requests[at].logprobs
            if wanted is not None and "logprobs" not in more:
                more["logprobs"] = made_up_logprobs(ids, wanted)
            listener(TokenDelta(request_id, ids, finish_reason, stop_token_id, error, invalid, **more))


def made_up_logprobs(ids: list[int], count: int) -> Logprobs:
    """See `FakeEngineClient.deliver`."""
    tops = [[(token_id + 1 + k) % VOCAB_SIZE for k in range(count)] for token_id in ids]
    return Logprobs([-0.5] * len(ids), tops, [[-0.1 * (k + 1) for k in range(count)] for _ in ids])


# Stands for an image.
_IMAGE = "<tool_call>"


class FakePrompts:
    """A `PromptClient` that tokenizes by the tiny tokenizer; chats are joined contents."""

    def __init__(self) -> None:
        self.connected = True
        self.result: PromptResult | Exception | None = None
        self.hold: Awaitable[Any] | None = None
        self.requests: list[PromptRequest] = []

    async def prepare(self, request: PromptRequest) -> PromptResult:
        self.requests.append(request)
        if self.hold is not None:
            await self.hold
        if isinstance(self.result, Exception):
            raise self.result
        if self.result is not None:
            return self.result
        if request.messages is not None:
            return self._chat(request.messages, request.image_sizes)
        if request.pairs is not None:
            prompts = [token_ids(first + second) for first, second in request.pairs]
            return PromptResult(prompts, compressed_token_type_ids=[len(token_ids(one)) for one, _ in request.pairs])
        return PromptResult([token_ids(text) for text in request.prompts or []])

    @staticmethod
    def _chat(messages: list[dict[str, Any]], sizes: list[tuple[int, int]]) -> PromptResult:
        """An image is `<tool_call>`, once before it is expanded, and then once for each row of its pixels."""
        parts: list[str] = []
        for message in messages:
            content = message["content"]
            for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
                parts.append(part["text"] if part["type"] == "text" else _IMAGE)
        text = "".join(parts)
        if not sizes:
            return PromptResult([token_ids(text)])
        rows = iter(height for _, height in sizes)
        whole = "".join(part * next(rows) if part == _IMAGE else part for part in parts)
        count = sum(height for _, height in sizes)
        return PromptResult([token_ids(whole)], media_text=text, media_token_ids=token_ids(text), image_tokens=count)


class FakeSink:
    """A `Sink` that keeps what it gets."""

    sse = False

    def __init__(self, *, opens_at_once: bool = False, sse: bool = False) -> None:
        self.opens_at_once = opens_at_once
        self.sse = sse
        self.raw: list[bytes] = []
        self.ends = 0
        self.errors: list[ApiError] = []

    unread = 0

    def begin(self, encoder: TextEncoder) -> None:
        self.encoder = encoder

    def text(self, index: int, text: str, usage: Usage | None) -> None:
        self.write(self.encoder.text(index, text, usage))

    def write(self, chunk: bytes) -> None:
        assert not self.ended
        self.raw.append(chunk)

    def end(self) -> None:
        self.ends += 1

    def fail(self, error: ApiError, event: bytes | None = None) -> None:
        if event is not None:
            self.raw.append(event)
        self.errors.append(error)

    @property
    def ended(self) -> bool:
        return self.ends + len(self.errors) > 0

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(chunk) for chunk in self.raw]


class FakeReply:
    """A Triton request's way back (`response_sender.Reply`), which the test may wait on."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.error: ApiError | None = None
        self.finals = 0
        self.cancelled = False
        self.changed = threading.Condition()

    def send(self, body: bytes, *, final: bool = False) -> None:
        assert not self.finals, "sent after the end"
        self._keep(json.loads(body), final)

    def fail(self, error: ApiError, *, after_output: bool = False) -> None:
        if not self.finals:
            self.error = None if after_output else error
            self._keep(error.body() if after_output else None, True)

    def close(self) -> None:
        if not self.finals:
            self._keep(None, True)

    def is_cancelled(self) -> bool:
        assert not self.finals, "asked after the end"
        return self.cancelled

    def _keep(self, body: dict[str, Any] | None, final: bool) -> None:
        with self.changed:
            if body is not None:
                self.bodies.append(body)
            self.finals += final
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], object]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S)

    def wait_end(self) -> None:
        self.wait_for(lambda: self.finals > 0)


class Bench:
    """A `Service` on a fake engine and fake preprocessing."""

    def __init__(self, info: EngineInfo | None = None, *, formats: ModelFormats | None = None, **settings: Any) -> None:
        self.engine = FakeEngineClient()
        self.prompts = FakePrompts()
        self.busy: list[int] = []
        self.records: list[RequestRecord] = []
        known = OpenAiBlsSettings(**settings)
        self.model = ServedModel(
            info or engine_info(),
            self.engine,
            self.prompts,
            tiny_detokenizers(),
            formats or detect(None, tool_call_parser="hermes", reasoning_parser="none"),
            known.aliases,
        )
        self.model_calls = FakeModelCalls()
        self.service = Service(Models([self.model]), known, self.model_calls, on_busy=self.busy.append)
        self.service.on_end = self.records.append


def usage_body(prompt: int, completion: int, *, cached: int = 0, reasoning: int = 0) -> dict[str, Any]:
    """`usage` as clients get it."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def chat(**fields: Any) -> ValidRequest:
    return parse_object("chat.completions", {"messages": [{"role": "user", "content": "hi"}], **fields})


def completion(**fields: Any) -> ValidRequest:
    return parse_object("completions", {"prompt": "hi", **fields})


def request_context(endpoint: str = "chat.completions", key: str = "") -> RequestContext:
    """Of a request that nobody observes."""
    context = RequestContext()
    context.endpoint, context.key = endpoint, key
    return context


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def exchange_address() -> str:
    """An address of an exchange that nobody else uses."""
    return sockets.address(f"test-{next(_numbers)}", os.getpid())


class Answered:
    """What an ASGI application answered."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)


App = Callable[..., Awaitable[None]]


async def ask(
    app: App, method: str, path: str, body: bytes | dict[str, Any] = b"", headers: Sequence[tuple[str, str]] = ()
) -> Answered:
    """One request to an ASGI application, in process; the path may have a query."""
    path, _, query = path.partition("?")
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    messages = [{"type": "http.request", "body": payload, "more_body": False}]
    parts: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        # An open connection on which nothing more comes.
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def send(message: MutableMapping[str, Any]) -> None:
        parts.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "scheme": "http",
        "query_string": query.encode(),
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }
    await app(scope, receive, send)
    start = parts[0]
    return Answered(
        start["status"],
        {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]},
        b"".join(part.get("body", b"") for part in parts[1:]),
    )


def events(body: bytes) -> list[str]:
    """The data of server-sent events; comments, which are lines of the event after them, are left out."""
    blocks = body.decode().split("\n\n")
    assert blocks[-1] == ""
    result = []
    for block in blocks[:-1]:
        (line,) = [line for line in block.split("\n") if not line.startswith(":")]
        assert line.startswith("data: ")
        result.append(line.removeprefix("data: "))
    return result
