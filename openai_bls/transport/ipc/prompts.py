"""Prompt exchange between `openai_bls` and `preprocessing`, and its client: prompts in, token ids out, in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from weakref import WeakValueDictionary

import msgspec

from openai_bls.core.engine_types import PromptRequest, PromptResult
from openai_bls.core.errors import EngineError, InvalidRequestError, OverloadedError, TooLargeError
from openai_bls.core.keys.turns import FairLock
from openai_bls.transport.ipc.frames import MAX_FRAME_BYTES
from openai_bls.transport.ipc.link import Link, PartState

LONG_BYTES = 64 * 1024
"""Bytes above which requests are prepared one at a time: a megabyte takes a second and 200 MB. Of several texts so many
bytes are one piece of work."""
MAX_LIST_TOKENS = 1 << 23
"""Tokens of the texts of a request, some 300 MB. Of pairs, whose first text may be the same, few bytes may be many."""
_ITEM_BYTES = 16
"""Room for what is around a text."""

# With room for what is around it.
_MOST_BYTES = MAX_FRAME_BYTES - 1024


class PromptCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """Request to `preprocessing`."""

    call_id: int
    request: bytes | None
    """A packed `PromptRequest`: one that cannot be unpacked must not cost the others their connection. None takes the
    call back."""
    key: str = ""
    """Name of the request's API key, which is known before the request is unpacked."""


class PromptAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer of `preprocessing`; the first on a connection has the call_id 0 and says that it is there."""

    call_id: int
    result: PromptResult = PromptResult()
    failed: bool = False
    """Preparing it raised something that was not the request's fault."""
    overloaded: str = ""
    """Why it was not prepared: too much of its key waits already."""


class SlowPromptError(Exception):
    """A prompt takes long to prepare: it is to be begun again on a thread that no other prompt waits for."""


# Made here: msgspec works out the types of a struct when they are first asked for, and two threads that ask at once, as
# those of several connections do, crash the process (0.22).
_TYPES_KNOWN = tuple(msgspec.msgpack.Decoder(kind) for kind in (PromptCall, PromptAnswer, PromptRequest))


def encode_request(request: PromptRequest) -> bytes:
    """`request` in MessagePack.

    Raises:
        InvalidRequestError: it holds a value that cannot be passed on.
    """
    try:
        return msgspec.msgpack.encode(request)
    except (OverflowError, UnicodeEncodeError, RecursionError) as error:
        # JSON text knows larger integers and half surrogate pairs.
        raise InvalidRequestError(f"The request holds a value that cannot be passed on: {error}") from None


class PromptExchangeClient:
    """Has prompts prepared. Belongs to the event loop's thread.

    Args:
        address: address of preprocessing, which `sockets.address` gives.
    """

    def __init__(self, address: str) -> None:
        self._calls: dict[int, asyncio.Future[PromptResult]] = {}
        self._last_id = 0
        # Long requests wait for their turn here, where giving up is easiest.
        self._long = FairLock()
        # A key has one list at a time: another of it waits as it came, which takes less room than its tokens.
        self._lists: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._link = Link("preprocessing model", address, PromptAnswer, self._take, self._lost)

    @property
    def connected(self) -> bool:
        """True while preprocessing is connected."""
        return self._link.open

    async def check(self, timeout_s: float) -> PartState:
        """Have preprocessing prepare a word."""
        return await self._link.check(timeout_s)

    async def prepare(self, request: PromptRequest) -> PromptResult:
        """Token ids for `request`.

        Raises:
            InvalidRequestError: the request holds a value that cannot be passed on, or too many of them.
            OverloadedError: preprocessing is not there, or too much of the request's key waits for it.
            EngineError: it failed.
        """
        if _is_long_list(request):
            # All at once, as below.
            await self._link.ready()
            async with self._lists.setdefault(request.key, asyncio.Lock()):
                return await self._prepare_list(request)
        return await self._prepare_one(request)

    async def _prepare_list(self, request: PromptRequest) -> PromptResult:
        """Token ids of many texts, which take a turn for every few of them; raises as `prepare` does."""
        prompts: list[list[int]] = []
        first, begins, tokens = PromptResult(), list[int](), 0
        for part in _parts(request):
            result = await self._prepare_one(part)
            if result.error is not None:
                return _behind(result, len(prompts))
            if not prompts:
                first = result
            prompts += result.prompt_token_ids
            begins += result.compressed_token_type_ids
            tokens += sum(map(len, result.prompt_token_ids))
            if tokens > MAX_LIST_TOKENS:
                problem = f"The texts have more than {MAX_LIST_TOKENS} tokens together: send fewer at a time."
                return PromptResult(error=problem, param="prompt", code="too_many_tokens")
        return msgspec.structs.replace(first, prompt_token_ids=prompts, compressed_token_type_ids=begins)

    async def _prepare_one(self, request: PromptRequest) -> PromptResult:
        payload = encode_request(request)
        if len(payload) > _MOST_BYTES:
            raise TooLargeError(_MOST_BYTES, "the most that is passed on to preprocessing")
        if len(payload) <= LONG_BYTES:
            return await self._call(payload, request.key)
        # All at once: in the line each would wait for a lost model after the other.
        await self._link.ready()
        async with self._long.turn(request.key):
            return await self._call(payload, request.key)

    async def _call(self, payload: bytes, key: str) -> PromptResult:
        await self._link.ready()
        self._last_id += 1
        call_id = self._last_id
        self._link.send(PromptCall(call_id, payload, key))
        answer: asyncio.Future[PromptResult] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = answer
        try:
            return await answer
        finally:
            self._calls.pop(call_id, None)
            if answer.cancelled():
                self._link.send(PromptCall(call_id, None))

    async def close(self) -> None:
        """Hang up; pending calls end with an error."""
        self._link.close()
        self._lost()
        await self._link.wait_closed()

    def _take(self, answer: PromptAnswer, transport: asyncio.Transport) -> None:
        if answer.call_id == 0:
            self._link.opened(transport)
            return
        call = self._calls.get(answer.call_id)
        if call is None or call.done():
            return
        if answer.overloaded:
            call.set_exception(OverloadedError(answer.overloaded))
        elif answer.failed:
            call.set_exception(EngineError("The prompt could not be prepared; see the server's log."))
        else:
            call.set_result(answer.result)

    def _lost(self) -> None:
        for call in self._calls.values():
            if not call.done():
                call.set_exception(OverloadedError(self._link.why_closed))


def _texts(request: PromptRequest) -> Sequence[str | tuple[str, str]]:
    return request.prompts or request.pairs or ()


def _size(text: str | tuple[str, str]) -> int:
    """Bytes of a text, or of a pair, at most."""
    if isinstance(text, tuple):
        return _size(text[0]) + _size(text[1])
    return _ITEM_BYTES + len(text) * (1 if text.isascii() else 4)


def _is_long_list(request: PromptRequest) -> bool:
    texts = _texts(request)
    return len(texts) > 1 and sum(map(_size, texts)) > LONG_BYTES


def _parts(request: PromptRequest) -> Iterator[PromptRequest]:
    """A request for many texts as requests for few, none of them long unless one of its texts is."""
    texts, start, size = _texts(request), 0, 0
    name = "prompts" if request.prompts else "pairs"
    for at, text in enumerate(texts):
        size += _size(text)
        if at > start and size > LONG_BYTES // 2:
            yield msgspec.structs.replace(request, **{name: texts[start:at]})
            # What belongs to the request as a whole is told once.
            request = msgspec.structs.replace(request, bad_words=[], prediction=None)
            start, size = at, _size(text)
    yield msgspec.structs.replace(request, **{name: texts[start:]})


def _behind(result: PromptResult, count: int) -> PromptResult:
    """The refusal of a text that has `count` others before it."""
    param = result.param
    if param is None or not param.startswith("prompt"):
        return result
    at = int(param[len("prompt[") : -1]) if param != "prompt" else 0
    return msgspec.structs.replace(result, param=f"prompt[{count + at}]")
