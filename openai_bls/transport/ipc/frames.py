"""Frames of the exchange: a length of 4 bytes, little-endian, and a message in MessagePack."""

from __future__ import annotations

import hashlib
import struct

import msgspec

from openai_bls.core.engine import EngineStats
from openai_bls.core.engine_types import (
    EngineInfo,
    GenerationRequest,
    Grammar,
    Logprobs,
    LoraUpdate,
    PromptLogprobs,
    SamplingParams,
    TokenDelta,
    UpdateResult,
)
from openai_bls.core.media import Image, MediaPrompt

# A request id's upper bits name the connection, so that the engine's ids need no translation.
CONNECTION_SHIFT = 32

LENGTH = struct.Struct("<I")

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""Bytes of a message: what would be larger is sent in parts, or refused by its sender."""

PIECE_BYTES = 128 * 1024
"""Bytes of pixels in a frame: they are copied in less than a tenth of a millisecond."""
MOST_PIXEL_BYTES = 1024 * 1024 * 1024
"""Bytes of pixels of one prompt: the engine keeps no more until the prompt comes."""

PING = b""
"""Message of a client that wants to know whether the other end answers; the answer is the same."""
GOODBYE = msgspec.msgpack.encode(None)
"""Last message of a server that is unloaded; one that dies sends none."""
RESTARTING = msgspec.msgpack.encode("restarting")
"""Message to a client that waits while the engine's process is being started again."""
GIVEN_UP = msgspec.msgpack.encode("given up")
"""Message to a client that waits for an engine's process that is not started any more."""


class FrameError(msgspec.DecodeError):
    """A frame that no end of this release sends."""


class FrameTooLargeError(OverflowError):
    """A message that does not fit into a frame."""


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


class PromptBlock(msgspec.Struct, frozen=True, array_like=True):
    """Block of the log-probabilities of a request's prompt; all but the last one come in order, ahead of its deltas."""

    request_id: int
    data: bytes


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
    """Adapter that was loaded or unloaded; `info` is new, too."""
    block: PromptBlock | None = None
    """Block of a later delta, in a separate frame."""


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
    *(PixelPiece, SharedMedia, MediaPrompt, Image, PromptBlock, PromptLogprobs),
    *(LoraUpdate, UpdateResult, TokenDelta, EngineInfo, EngineStats),
)

FRAMES_RELEASE = hashlib.sha256(_definitions().encode()).hexdigest()[:16]
"""Release of the frames: 16 hexadecimal digits that change with any struct that travels."""


def pack(encoded: bytes) -> bytes:
    """A frame around an encoded message.

    Raises:
        FrameTooLargeError: it does not fit.
    """
    if len(encoded) > MAX_FRAME_BYTES:
        raise FrameTooLargeError(f"a message of {len(encoded)} bytes")
    return LENGTH.pack(len(encoded)) + encoded


class Frames:
    """Cuts a stream of bytes into the messages of its frames.

    Args:
        limit: bytes of a message that the other end may send.
    """

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """The encoded messages that `data` completes.

        Raises:
            FrameError: a message is said to be larger than any that is sent.
        """
        buffer = self._buffer
        buffer += data
        messages = []
        start = 0
        while len(buffer) - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(buffer, start)
            if length > self._limit:
                raise FrameError(f"a frame of {length} bytes")
            end = start + LENGTH.size + length
            if len(buffer) < end:
                break
            messages.append(bytes(memoryview(buffer)[start + LENGTH.size : end]))
            start = end
        del buffer[:start]
        return messages
