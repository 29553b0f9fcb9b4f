"""Targets and plans: an address, an API, and the requests that are sent to it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from tokenizers import Tokenizer

from benchmarks.support import lengths

Api = Literal["chat", "completions", "generate_stream", "grpc"]

Dialect = Literal["openai", "ids", "text"]
"""What a Triton model speaks: OpenAI's JSON as text; `input_ids` to `output_ids`, one id a response; `text_input` to
`text_output`, one response a token."""
_OUTPUTS: dict[Dialect, str] = {"openai": "response", "ids": "output_ids", "text": "text_output"}

_DISTINCT_PROMPTS = 64
_HIGHEST_ID = 256
_SAMPLE_WORDS = 1_000
# Common words, so that most tokenizers have a token for each of them.
_WORDS = (  # noqa: SIM905  # reads better than fifty lines
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so up said what its"
).split()


@dataclass(frozen=True)
class Layout:
    """Events of a stream that carry no generated text."""

    lead: int = 0
    """Before the first text: the role chunk."""
    trail: int = 0
    """After the last text: finish reason, usage, and [DONE] on /v1."""


@dataclass(frozen=True)
class Target:
    """One API of one server."""

    api: Api
    host: str
    port: int
    path: str = ""
    """Path of the HTTP endpoint; empty for gRPC."""
    model: str = "openai_bls"
    """The `model` of the OpenAI request."""
    triton_model: str = "openai_bls"
    """The Triton model that takes OpenAI requests."""
    dialect: Dialect = "openai"
    tls: bool = False
    """Whose certificate is not verified."""

    @property
    def output(self) -> str:
        """The Triton model's output tensor."""
        return _OUTPUTS[self.dialect]

    @property
    def layout(self) -> Layout:
        """Of its streams, unless several tokens share an event."""
        if self.dialect != "openai":
            return Layout()
        if self.api == "completions":
            return Layout(0, 3)
        return Layout(1, 3 if self.api == "chat" else 2)


@dataclass(frozen=True)
class Arrivals:
    """An open loop: requests at random moments (Poisson), with prompts and outputs of mixed lengths."""

    rate: float
    """Requests per second."""
    seconds: float
    """Time over which they arrive."""
    words_per_token: float = 1.0


@dataclass(frozen=True)
class Plan:
    """Work of a client process: `concurrency` requests at a time until `requests` have been made."""

    target: Target
    concurrency: int
    requests: int
    prompt_words: int
    output_tokens: int
    timeout_s: float = 120.0
    """Seconds after which a request that has not ended counts as incomplete."""
    tail: int = 3
    """How many of a stream's last events are kept for a look at them after the run."""
    seed: int = 0
    """Different prompts for different seeds."""
    seconds: float | None = None
    """If set, no request is begun later than this; the first `concurrency` always are."""
    pause_s: float = 0.0
    """Mean pause between two requests of the same client; each lasts from half to one and a half of it."""
    stall_s: float = 60.0
    """Seconds without any data on any stream after which the whole run is given up."""
    arrivals: Arrivals | None = None
    """If set, requests come at moments of their own and have lengths of their own, which take the place of `requests`,
    `prompt_words` and `output_tokens`; `concurrency` is the number of connections. OpenAI's dialect only."""
    response_format: dict[str, Any] | None = None
    """Field of each OpenAI request."""


@dataclass(frozen=True)
class Asked:
    """One request to make."""

    body: bytes
    output_tokens: int
    at_s: float = 0.0
    """Seconds from the start of the run before which it is not sent."""


def http_target(
    api: Api, base_url: str, *, model: str = "", triton_model: str = "openai_bls", dialect: Dialect = "openai"
) -> Target:
    """The target for `api` under `base_url`: `http://host:port/v1`, or Triton's `http://host:port`.

    Raises:
        ValueError: not an http or https URL.
    """
    url = urlsplit(base_url)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f"not an http:// or https:// URL: {base_url}")
    tls = url.scheme == "https"
    triton = f"/v2/models/{triton_model}/generate_stream"
    path = url.path.rstrip("/") + {"chat": "/chat/completions", "completions": "/completions"}.get(api, triton)
    return Target(api, url.hostname, url.port or (443 if tls else 80), path, model, triton_model, dialect, tls)


def grpc_target(
    address: str, *, model: str = "", triton_model: str = "openai_bls", dialect: Dialect = "openai"
) -> Target:
    """The target for gRPC at `host:port`."""
    host, _, port = address.rpartition(":")
    return Target("grpc", host, int(port), model=model, triton_model=triton_model, dialect=dialect)


def prompt_text(words: int, rng: random.Random) -> str:
    """`words` common English words in random order."""
    return " ".join(rng.choices(_WORDS, k=words))


def words_for(tokens: int, tokenizer: Path) -> int:
    """Words that make about `tokens` tokens by a tokenizer.json, special tokens and templates left aside."""
    text = prompt_text(_SAMPLE_WORDS, random.Random(0))
    return max(1, round(tokens * _SAMPLE_WORDS / len(Tokenizer.from_file(str(tokenizer)).encode(text).ids)))


def openai_body(
    target: Target, prompt: str, output_tokens: int, response_format: dict[str, Any] | None = None
) -> bytes:
    """A streaming OpenAI request for exactly `output_tokens` tokens, as JSON text."""
    body: dict[str, Any] = {
        "model": target.model,
        **({"prompt": prompt} if target.api == "completions" else {"messages": [{"role": "user", "content": prompt}]}),
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if response_format is not None:
        body["response_format"] = response_format
    return msgspec.json.encode(body)


def triton_body(target: Target, words: int, output_tokens: int, rng: random.Random) -> bytes:
    """The inputs of a model that does not speak OpenAI, as JSON text: `words` token ids or words, and the length."""
    if target.dialect == "ids":
        ids = rng.choices(range(1, _HIGHEST_ID), k=words)
        return msgspec.json.encode({"input_ids": ids, "request_output_len": output_tokens})
    return msgspec.json.encode({"text_input": prompt_text(words, rng), "max_tokens": output_tokens})


def triton_inputs(target: Target, body: bytes) -> dict[str, Any]:
    """The inputs of the Triton request that carries `body`, by name: strings, integers or lists of integers."""
    if target.dialect == "openai":
        return {"request": body.decode()}
    inputs: dict[str, Any] = msgspec.json.decode(body)
    return inputs


def bodies(plan: Plan) -> list[Asked]:
    """The requests that a client makes, made before the clock starts; of a closed loop in turn, again and again."""
    rng = random.Random(plan.seed)
    target, words, length = plan.target, plan.prompt_words, plan.output_tokens
    if plan.arrivals is not None:
        return list(_arriving(plan, plan.arrivals, rng))
    count = min(plan.requests, _DISTINCT_PROMPTS)
    if target.dialect == "openai":
        made = (openai_body(target, prompt_text(words, rng), length, plan.response_format) for _ in range(count))
    else:
        made = (triton_body(target, words, length, rng) for _ in range(count))
    return [Asked(body, length) for body in made]


def _arriving(plan: Plan, arrivals: Arrivals, rng: random.Random) -> Iterator[Asked]:
    at = 0.0
    while (at := at + rng.expovariate(arrivals.rate)) < arrivals.seconds:
        words = max(1, round(lengths.PROMPTS.draw(rng) * arrivals.words_per_token))
        length = lengths.OUTPUTS.draw(rng)
        body = openai_body(plan.target, prompt_text(words, rng), length, plan.response_format)
        yield Asked(body, length, at)


def http_request(target: Target, body: bytes) -> bytes:
    """The whole HTTP/1.1 request that carries an OpenAI `body` to `target`."""
    if target.api == "generate_stream":
        body = msgspec.json.encode(triton_inputs(target, body))
    head = [
        f"POST {target.path} HTTP/1.1",
        f"Host: {target.host}:{target.port}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body
