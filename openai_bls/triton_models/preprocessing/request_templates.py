"""Chat templates of requests: programs of clients, rendered in processes that may be ended."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.core.engine_types import PromptRequest
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.processes.machine import TEMPLATE_RENDERER
from openai_bls.core.processes.worker_pool import Work, Worker, WorkerLostError, WorkerPool
from openai_bls.triton_models.preprocessing import rendering, template_worker
from openai_bls.triton_models.preprocessing.template_worker import LENGTH, Answer

MEMORY_BYTES = 512 * 1024 * 1024
"""Memory of a rendering, its messages and its text included."""
MAX_TEXT_BYTES = 64 * 1024 * 1024
"""Bytes of a text, where no limit of prompts is known."""
TIME_LIMIT_S = 120.0
"""Seconds after which a rendering is ended that takes no CPU time: much more than a busy machine needs, which may take
many to start a process."""
AT_REST = 2
"""Processes that are kept for the next rendering."""


class RequestTemplates:
    """Renders templates of requests. Any thread may use it.

    Args:
        special_tokens: tokens that templates know by names.
        max_bytes: the largest text; None is no limit.
    """

    def __init__(self, special_tokens: dict[str, Any], max_bytes: Callable[[], int] | None = None) -> None:
        self._special_tokens = special_tokens
        self._max_bytes = max_bytes
        folders = [str(Path(folder).resolve()) for folder in sys.path if folder]
        work = Work(
            TEMPLATE_RENDERER,
            Path(template_worker.__file__),
            folders,
            rendering.CPU_S,
            TIME_LIMIT_S,
            MEMORY_BYTES,
        )
        self._pool = WorkerPool(work, AT_REST)

    def render(self, request: PromptRequest) -> str:
        """Text of the conversation in `request`, by the template that it brings.

        Raises:
            InvalidRequestError: the template does not render the messages, or takes too much time or memory.
        """
        most = MAX_TEXT_BYTES if self._max_bytes is None else self._max_bytes()
        job = template_worker.packed(request, self._special_tokens, most)
        try:
            answer = self._pool.run(partial(_asked, job))
        except WorkerLostError as lost:
            raise (_too_large() if lost.reason == "died" else rendering.too_slow(request)) from None
        if answer.is_last:
            raise _too_large()
        if answer.error is not None:
            raise InvalidRequestError(answer.error, param=answer.param, code=answer.code)
        return answer.text

    def close(self) -> None:
        """End the processes."""
        self._pool.close()


def _asked(job: bytes, worker: Worker) -> Answer:
    worker.send([LENGTH.pack(len(job)), job])
    (length,) = LENGTH.unpack(worker.read(LENGTH.size))
    answer = msgspec.msgpack.decode(worker.read(length), type=Answer)
    worker.is_spent = answer.is_last
    return answer


def _too_large() -> InvalidRequestError:
    return InvalidRequestError(
        f"'chat_template' takes more than {MEMORY_BYTES >> 20} MiB to render these messages, and was stopped.",
        param="chat_template",
        code="chat_template_too_large",
    )
