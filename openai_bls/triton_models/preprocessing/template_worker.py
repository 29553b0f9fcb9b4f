"""Job of a template process (`core/processes/worker.py`): a request's chat template, rendered by `rendering`.

A job and its answer are MessagePack after their length, see `LENGTH`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

if TYPE_CHECKING:
    from openai_bls.core.engine_types import PromptRequest

LENGTH = struct.Struct("<Q")
"""Length in bytes of the job or the answer that follows."""


class Answer(msgspec.Struct, omit_defaults=True):
    """Answer to a job, or why there is none."""

    text: str = ""
    error: str | None = None
    """Message for the client."""
    param: str | None = None
    code: str | None = None
    is_last: bool = False
    """The process ends."""


def packed(request: PromptRequest, special_tokens: dict[str, Any], max_bytes: int) -> bytes:
    """A job: a request with its template, the tokens that templates know by names, the most bytes of a text."""
    return msgspec.msgpack.encode((request, special_tokens, max_bytes))


def load() -> None:
    """Import what templates take, without torch."""
    import logging
    import os
    import sys

    sys.modules["torch"] = None  # type: ignore[assignment]
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    logging.disable()
    from openai_bls.core.engine_types import PromptRequest
    from openai_bls.triton_models.preprocessing import rendering

    # What transformers and Jinja load when they are first used is loaded before there are limits.
    request = PromptRequest(messages=[{"role": "user", "content": "a"}], chat_template="{{ messages | tojson }}")
    rendering.render(_tokenizer({}), request, None)


def _tokenizer(special_tokens: dict[str, Any]) -> Any:
    """Tokenizer of transformers that can only render templates."""
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

    class Templates(PreTrainedTokenizerBase):  # type: ignore[misc]
        special_tokens_map = special_tokens

        def __init__(self) -> None:
            self.chat_template = None

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    return Templates()


def answer(source: BinaryIO, target: BinaryIO) -> bool:
    """Do one job; False if there will be no more."""
    from openai_bls.core.engine_types import PromptRequest

    (length,) = LENGTH.unpack(source.read(LENGTH.size))
    try:
        job = msgspec.msgpack.decode(source.read(length), type=tuple[PromptRequest, dict[str, Any], int])
        found = _rendered(*job)
        data = msgspec.msgpack.encode(found)
    except UnicodeEncodeError:
        data = msgspec.msgpack.encode(Answer(error="'chat_template' renders half a character.", param="chat_template"))
    except MemoryError:
        # What is left of the memory is in unknown pieces.
        found = Answer(is_last=True)
        data = msgspec.msgpack.encode(found)
    target.write(LENGTH.pack(len(data)))
    target.write(data)
    return not found.is_last


def _rendered(request: PromptRequest, special_tokens: dict[str, Any], max_bytes: int) -> Answer:
    from openai_bls.core.errors import InvalidRequestError
    from openai_bls.triton_models.preprocessing import rendering

    try:
        text = rendering.render(_tokenizer(special_tokens), request, None)
        rendering.check_size(text, max_bytes, "chat_template")
    except InvalidRequestError as error:
        return Answer(error=error.message, param=error.param, code=error.code)
    return Answer(text)
