"""Events of streams: cut out of bytes, and the few of them that are decoded.

Clients only count events while the clock runs. The first and the last ones are decoded afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from benchmarks.clients.target import Layout, Target

DONE = b"[DONE]"
_DATA = b"data:"
_LENGTH_BYTES = 4  # before each string of a raw BYTES tensor


class EventSplitter:
    """Cuts the body of a `text/event-stream` response into events, however it was cut on the way."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events with data that `data` completes. Comments are left out."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        return [event for event in map(_without_comments, events) if event.startswith(_DATA)]

    @property
    def rest(self) -> bytes:
        """What has come of the next event."""
        return self._rest


def _without_comments(event: bytes) -> bytes:
    """`event` without the comments before its data, which break a silence."""
    while event.startswith(b":"):
        event = event.partition(b"\n")[2]
    return event


class StreamFailure(Exception):  # noqa: N818  # a finding, not a fault of this program
    """An event that reports an error; the message is the server's."""


def sse_payload(event: bytes) -> bytes:
    """The OpenAI chunk, or [DONE], in an event of /v1."""
    return event[len(_DATA) :].strip()


def generate_payload(event: bytes, output: str = "response") -> bytes:
    """The value of `output`, such as an OpenAI chunk, in an event of Triton's generate_stream.

    Raises:
        StreamFailure: an error of Triton's own, or no such output.
    """
    outer = msgspec.json.decode(sse_payload(event))
    if "error" in outer:
        raise StreamFailure(str(outer["error"]))
    if output not in outer:
        raise StreamFailure(f"a response without {output}")
    return str(outer[output]).encode()


def grpc_payload(message: bytes) -> bytes:
    """The first element of the first output in a serialized ModelStreamInferResponse, such as an OpenAI chunk.

    Raises:
        StreamFailure: an error of Triton's, or no output.
    """
    from tritonclient.grpc import service_pb2

    response = service_pb2.ModelStreamInferResponse.FromString(message)
    if response.error_message:
        raise StreamFailure(response.error_message)
    outputs = response.infer_response.raw_output_contents
    if not outputs:
        raise StreamFailure("a response without an output")
    if response.infer_response.outputs and response.infer_response.outputs[0].datatype == "INT32":
        return str(int.from_bytes(outputs[0][:4], "little")).encode()
    chunk: bytes = outputs[0][_LENGTH_BYTES:]
    return chunk


PayloadReader = Callable[[bytes], bytes]


def payload_reader(target: Target) -> PayloadReader:
    """From an event of `target` to the OpenAI chunk (or the token id, or the text) in it."""
    if target.api == "grpc":
        return grpc_payload
    if target.api == "generate_stream":
        return functools.partial(generate_payload, output=target.output)
    return sse_payload


@dataclass
class Ending:
    """What the last events of a stream say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    done: bool = False


def read_ending(tail: Sequence[bytes], payload: PayloadReader) -> Ending:
    """Look into a stream's last events.

    Raises:
        StreamFailure: one of them reports an error, or is no OpenAI chunk.
    """
    ending = Ending()
    for event in tail:
        text = payload(event)
        if text == DONE:
            ending.done = True
            continue
        usage = _chunk(text).get("usage")
        if usage:
            ending.prompt_tokens = usage["prompt_tokens"]
            ending.completion_tokens = usage["completion_tokens"]
    return ending


def layout_of(head: bytes, tail: Sequence[bytes], payload: PayloadReader, usual: Layout) -> Layout:
    """The layout of one stream: the `usual` one, unless its first event or its last ones show another.

    A server that puts several tokens into one event may also put the first or the last text beside what usually stands
    alone, such as the role or the finish reason.

    Raises:
        StreamFailure: an event reports an error, or is no OpenAI chunk.
    """
    texts = [i for i, event in enumerate(tail) if has_text(payload(event))]
    return Layout(
        lead=0 if usual.lead and head and has_text(payload(head)) else usual.lead,
        trail=len(tail) - 1 - texts[-1] if texts else usual.trail,
    )


def has_text(text: bytes) -> bool:
    """Whether an OpenAI chunk carries generated text."""
    if text == DONE:
        return False
    choices = _chunk(text).get("choices")
    if not choices:
        return False
    choice = choices[0]
    return bool(choice.get("text") or choice.get("delta", {}).get("content"))


def _chunk(text: bytes) -> dict[str, Any]:
    try:
        chunk = msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise StreamFailure(f"not JSON: {text[:80]!r}") from None
    if not isinstance(chunk, dict) or "error" in chunk:
        raise StreamFailure(error_message(text))
    return chunk


def error_message(body: bytes) -> str:
    """The message in an OpenAI or Triton error body, or the body's beginning."""
    try:
        # Triton's generate_stream has its errors in an event, whatever the status.
        error = msgspec.json.decode(body.removeprefix(_DATA))["error"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
    return str(error["message"] if isinstance(error, dict) and "message" in error else error)[:200]
