"""Frames of the exchange: a length of 4 bytes, little-endian, and a message in MessagePack."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
from pathlib import Path

import msgspec

from openai_bls.core.engine import EngineStats
from openai_bls.core.engine_types import (
    EngineInfo,
    GenerationRequest,
    Grammar,
    Logprobs,
    LoraUpdate,
    SamplingParams,
    TokenDelta,
    UpdateResult,
)
from openai_bls.core.media import Image, MediaPrompt

# A request id's upper bits name the connection, so that the engine's ids need no translation.
CONNECTION_SHIFT = 32

LENGTH = struct.Struct("<I")

PING = b""
"""Message of a client that wants to know whether the other end answers; the answer is the same."""
GOODBYE = msgspec.msgpack.encode(None)
"""Last message of a server that is unloaded; one that dies sends none."""
RESTARTING = msgspec.msgpack.encode("restarting")
"""Message to a client that waits while the engine's process is being started again."""
GIVEN_UP = msgspec.msgpack.encode("given up")
"""Message to a client that waits for an engine's process that is not started any more."""


class PixelPiece(msgspec.Struct, frozen=True, array_like=True):
    """A piece of an image's pixels; an image's pieces come in order, ahead of the requests that have it."""

    number: int
    """Number of the image on its connection."""
    data: bytes


class SharedMedia(msgspec.Struct, frozen=True, array_like=True):
    """Images of a prompt, once for all requests that share the prompt: the choices of a chat completion, say."""

    media: MediaPrompt
    """The prompt, with images that have no pixels."""
    numbers: list[int]
    """Numbers of the images, in their order. They mean nothing afterwards."""
    request_ids: list[int]
    """Requests of the same frame, which have no `media`."""


class ClientFrame(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Message of `openai_bls` to `tensorrt_llm`."""

    submissions: list[GenerationRequest] = []
    """Requests to generate. Their `request_id` is the connection's `id_base` + a counter."""
    cancels: list[int] = []
    loras: list[LoraUpdate] = []
    """Adapters to load or unload, each answered by an `UpdateResult`."""
    prefix_resets: list[int] = []
    """Ids of resets of the prefix cache, likewise."""
    stats_queries: list[int] = []
    """Ids of questions for the engine's load, each answered by `stats` and an `UpdateResult`."""
    pixels: list[PixelPiece] = []
    """Pieces of images of later requests."""
    media: list[SharedMedia] = []
    """Images of the submissions."""
    dropped: list[int] = []
    """Numbers of images whose requests were cancelled before they were sent."""


class ServerFrame(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Message of `tensorrt_llm` to `openai_bls`."""

    deltas: list[TokenDelta] = []
    """Deltas in the order in which the engine produced them."""
    info: EngineInfo | None = None
    """Facts of the engine, in the first frame of a connection and after adapters were loaded or unloaded."""
    id_base: int = 0
    """Number to which the client adds a counter for its request ids, in the first frame of a connection only."""
    stats: EngineStats | None = None
    """Load of the engine, in a separate frame, once a second while it changes."""
    update: UpdateResult | None = None
    """Answer to an update, in a separate frame; for an adapter after the frame with the new `info`."""
    lora: LoraUpdate | None = None
    """The adapter that was loaded or unloaded, beside the new `info`."""


# msgspec works out the types of a struct when they are first asked for, and two threads that ask at once crash the
# process (0.22): so here, while the module is imported. Each connection has a decoder of its own all the same.
_TYPES_KNOWN = (msgspec.msgpack.Decoder(ClientFrame), msgspec.msgpack.Decoder(ServerFrame))


def _definitions() -> str:
    """Definitions of all structs that travel, as text: names, types and defaults of their fields, and their form."""
    found: list[str] = []
    for kind in sorted(_STRUCTS, key=lambda kind: kind.__name__):
        config, fields = kind.__struct_config__, kind.__struct_fields__
        types = [(field, kind.__annotations__[field]) for field in fields]
        found.append(f"{kind.__name__} {config.array_like} {config.omit_defaults} {types} {kind.__struct_defaults__}")
    return "\n".join(found)


_STRUCTS: tuple[type[msgspec.Struct], ...] = (
    *(ClientFrame, ServerFrame, GenerationRequest, SamplingParams, Grammar, Logprobs),
    *(PixelPiece, SharedMedia, MediaPrompt, Image),
    *(LoraUpdate, UpdateResult, TokenDelta, EngineInfo, EngineStats),
)

FRAMES_RELEASE = hashlib.sha256(_definitions().encode()).hexdigest()[:16]
"""Release of the frames: 16 hexadecimal digits that change with any struct that travels."""


def pack(encoded: bytes) -> bytes:
    """A frame around an encoded message."""
    return LENGTH.pack(len(encoded)) + encoded


class Frames:
    """Cuts a stream of bytes into the messages of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The encoded messages that `data` completes."""
        buffer = self._buffer
        buffer += data
        messages = []
        start = 0
        while len(buffer) - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(buffer, start)
            end = start + LENGTH.size + length
            if len(buffer) < end:
                break
            messages.append(bytes(memoryview(buffer)[start + LENGTH.size : end]))
            start = end
        del buffer[:start]
        return messages


def process_identity(pid: int) -> tuple[int, int, str]:
    """Id namespace, id, and start (in clock ticks) of a process, which together no other process of this machine has.

    Process ids repeat over time, and between containers that share a network namespace or /dev/shm. The start is "0"
    for a process that is not there.
    """
    try:
        # Field 22; the second field, in parentheses, may hold spaces.
        started = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = "0"
    namespace = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116  # Path.stat resolves the link's text
    return namespace, pid, started


def address(model: str, server_pid: int) -> str:
    """Abstract Unix address of the model `model` within the tritonserver `server_pid`; it leaves no file behind."""
    namespace, pid, started = process_identity(server_pid)
    return f"\0openai_bls/{namespace}/{pid}/{started}/{model}"


def new_socket() -> socket.socket:
    """An unconnected socket of the exchange's kind."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
