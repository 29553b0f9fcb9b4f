"""State of a request in the engine `tensorrt_llm`: from its output there to the deltas of its client."""

from __future__ import annotations

import asyncio
import logging

from openai_bls.core.engine_types import GenerationRequest, TokenDelta
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls.engines.not_finite import NotFiniteError, not_finite_end
from openai_bls_tensorrt_llm.deltas import Cursor, OutputError
from openai_bls_tensorrt_llm.installed.interface import LoraAdapter, Output

logger = logging.getLogger(__name__)


class RequestState:
    """A request that has not ended; used by the engine's thread alone."""

    __slots__ = (
        "adapter",
        "cursor",
        "end_id",
        "ended",
        "finished",
        "marked",
        "model_name",
        "output",
        "request",
        "task",
    )

    def __init__(
        self, request: GenerationRequest, end_id: int | None, adapter: LoraAdapter | None, model_name: str
    ) -> None:
        """Take a request.

        Args:
            request: the request.
            end_id: `end_id` of the request in TensorRT-LLM; None if there is none.
            adapter: adapter that it is for; None is the base model.
            model_name: name of the served model, for messages.
        """
        self.model_name = model_name
        self.request = request
        self.end_id = end_id
        self.adapter = adapter
        self.cursor = Cursor(request, end_id)
        self.output: Output | None = None
        """TensorRT-LLM's handle of the request; None until it is submitted."""
        self.task: asyncio.Task[None] | None = None
        """Iterates over the output."""
        self.marked = False
        """True if the output may hold something new."""
        self.finished = False
        """True if the output will not change any more."""
        self.ended = False
        """True once the request's last delta was given."""

    def advance(self) -> TokenDelta | None:
        """Delta of what is new in the output, if anything is; whatever goes wrong ends this request alone."""
        output = self.output
        assert output is not None
        try:
            return self.cursor.advance(
                output.outputs[0],
                finished=self.finished or output.finished,
                cached_tokens=getattr(output, "cached_tokens", 0) or 0,
            )
        except NotFiniteError:
            return not_finite_end(self.request, self.model_name)
        except OutputError as error:
            logger.error("a request failed: %s", error)
        except Exception:
            logger.exception("a request's output could not be read")
        return TokenDelta(self.request.request_id, [], "error", error=ENGINE_FAILED)

    def end(self) -> None:
        """Let the last delta be given; stop the request if it still runs."""
        self.ended = True
        if self.task is None or self.output is None:
            return
        if not self.finished and not self.output.finished:
            try:
                self.output.abort()
            except Exception:
                logger.warning("TensorRT-LLM did not abort a request", exc_info=True)
        if self.task is not asyncio.current_task(self.task.get_loop()):
            self.task.cancel()
