"""Calls of task models: the inputs of a request in batches that the model takes, its outputs input by input."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing

import numpy as np

from openai_bls.core.errors import (
    ApiError,
    DeadlineError,
    EngineError,
    ModelAnswerError,
    OverloadedError,
    TooLargeError,
)
from openai_bls.pipeline.task_models.registry import TaskModel, TensorSpec
from openai_bls.transport.model_calls import (
    ROOM_OF_INPUTS,
    Array,
    Arrays,
    InputTooLargeError,
    ModelCallError,
    ModelCalls,
    ModelTimeoutError,
    ModelUnavailableError,
    NoStreamsError,
    text_array,
)

logger = logging.getLogger(__name__)

CALLS_AT_ONCE = 4
"""Calls of one request that run side by side; others wait, so that it leaves room for other requests."""

_NUMPY = {
    "TYPE_STRING": np.object_,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP32": np.float32,
}
_NONE = np.zeros(1, np.int64)
# What the Python backend says of an exception that a model did not mean for anybody.
_UNEXPECTED = "Failed to process the request(s)"


def text_rows(texts: Iterable[str]) -> list[Array]:
    """Rows of one text each."""
    return [text_array(text) for text in texts]


def integer_rows(rows: Iterable[Sequence[int]]) -> list[Array]:
    """Rows of integers, each of its own length."""
    return [np.array(row, dtype=np.int64) for row in rows]


class TaskCall:
    """One request's calls of a task model.

    Args:
        calls: calls of other models of this server.
        model: task model without a fault.
        timeout_s: seconds for all calls together, unless the model sets them itself.
        at_most_s: most seconds, whoever sets them; None is no bound.
        key: name of the request's API key.
        param: field of the request that the inputs are of.
    """

    def __init__(
        self,
        calls: ModelCalls,
        model: TaskModel,
        timeout_s: float,
        at_most_s: float | None = None,
        *,
        key: str = "",
        param: str | None = None,
    ) -> None:
        self._calls = calls
        self._model = model
        self._key = key
        self._param = param
        self._timeout_s = model.timeout_s or timeout_s
        if at_most_s is not None:
            self._timeout_s = min(self._timeout_s, at_most_s)
        self._deadline = time.monotonic() + self._timeout_s
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE)
        self.prompt_tokens = 0
        """Sum of its output `prompt_tokens` up to now."""

    async def run(self, inputs: Mapping[str, Sequence[Array]]) -> dict[str, list[Array]]:
        """The outputs of all rows by role, in their order, each flat; `prompt_tokens` goes to the sum.

        Args:
            inputs: rows by role, equally many, each flat. Rows that differ in length are not called together.

        Raises:
            ApiError: the model is gone, has failed, has not answered in time, or what it gave is not what it declares.
        """
        batches = self._batches(list(inputs.values()))
        tasks = [asyncio.ensure_future(self._batch(inputs, batch)) for batch in batches]
        try:
            answers = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        count = sum(len(batch) for batch in batches)
        outputs: dict[str, list[Array]] = {}
        for role in self._model.outputs:
            rows: list[Array] = [np.empty(0)] * count
            for batch, answer in zip(batches, answers, strict=True):
                for index, row in zip(batch, answer[role], strict=True):
                    rows[index] = row
            outputs[role] = rows
        if len(sizes := {len(row) for row in outputs.get("embedding", [])}) > 1:
            raise self._misfit(f"embeddings of {min(sizes)} and of {max(sizes)} numbers")
        self.prompt_tokens += sum(int(row[0]) for row in outputs.pop("prompt_tokens", []))
        return outputs

    async def pieces(self, inputs: Mapping[str, Array]) -> AsyncGenerator[dict[str, Array], None]:
        """The outputs of one row by role, as they come: response by response of a decoupled model, else all at once.

        Closing the iterator cancels the request to a decoupled model. `prompt_tokens` goes to the sum.

        Args:
            inputs: row by role, flat.

        Raises:
            ApiError: as for `run`, also after some pieces; what a response leaves out is absent.
        """
        model = self._model
        if not model.decoupled:
            outputs = await self.run({role: [row] for role, row in inputs.items()})
            yield {role: rows[0] for role, rows in outputs.items()}
            return
        tensors = self._tensors({role: [row] for role, row in inputs.items()}, [0])
        names = [spec.name for spec in model.outputs.values()]
        try:
            responses = self._calls.stream(model.name, tensors, names, timeout_s=self._timeout_s, key=self._key)
            async with aclosing(responses):
                async for arrays in responses:
                    specs = {role: spec for role, spec in model.outputs.items() if spec.name in arrays}
                    piece = {role: self._rows(spec, arrays[spec.name], role, 1)[0] for role, spec in specs.items()}
                    self.prompt_tokens += int(piece.pop("prompt_tokens", _NONE)[0])
                    yield piece
        except ModelCallError as error:
            raise call_failure(model.name, error, self._timeout_s, self._param) from None

    def _batches(self, columns: Sequence[Sequence[Array]]) -> list[list[int]]:
        """Indices of the rows of each call."""
        by_lengths: dict[tuple[int, ...], list[int]] = {}
        for index, rows in enumerate(zip(*columns, strict=True)):
            by_lengths.setdefault(tuple(len(row) for row in rows), []).append(index)
        size = max(1, self._model.max_batch_size)
        return [group[at : at + size] for group in by_lengths.values() for at in range(0, len(group), size)]

    async def _batch(self, inputs: Mapping[str, Sequence[Array]], batch: list[int]) -> dict[str, list[Array]]:
        async with self._slots:
            arrays = await self._call(self._tensors(inputs, batch))
        outputs = self._model.outputs
        return {role: self._rows(spec, arrays[spec.name], role, len(batch)) for role, spec in outputs.items()}

    def _tensors(self, inputs: Mapping[str, Sequence[Array]], batch: Sequence[int]) -> dict[str, Array]:
        model = self._model
        tensors = {}
        for role, rows in inputs.items():
            spec = model.inputs[role]
            tensors[spec.name] = _tensor(spec, [rows[index] for index in batch], batched=model.max_batch_size > 0)
        return tensors

    async def _call(self, tensors: Arrays) -> Arrays:
        name = self._model.name
        names = [spec.name for spec in self._model.outputs.values()]
        left = self._deadline - time.monotonic()
        try:
            if left <= 0:
                raise ModelTimeoutError("no time is left")
            return await self._calls.call(name, tensors, names, timeout_s=left, key=self._key)
        except ModelCallError as error:
            raise call_failure(name, error, self._timeout_s, self._param) from None

    def _rows(self, spec: TensorSpec, array: Array, role: str, count: int) -> list[Array]:
        """An output as one flat row per input."""
        model = self._model
        batched = model.max_batch_size > 0
        shape = array.shape
        if array.dtype != _NUMPY[spec.data_type] or (batched and (not shape or shape[0] != count)):
            raise self._misfit(f"{spec.name!r} as {array.dtype} of shape {list(shape)} for {count} inputs")
        rows = [array[index].reshape(-1) for index in range(count)] if batched else [array.reshape(-1)]
        if role in ("score", "prompt_tokens", "completion_tokens") and any(len(row) != 1 for row in rows):
            raise self._misfit(f"{spec.name!r} with {len(rows[0])} numbers instead of one per input")
        declared = math.prod(spec.dims)
        if all(size >= 0 for size in spec.dims) and any(len(row) != declared for row in rows):
            raise self._misfit(f"{spec.name!r} with {len(rows[0])} numbers per input, {declared} in its configuration")
        if role in ("prompt_tokens", "completion_tokens") and (array < 0).any():
            raise self._misfit(f"{spec.name!r} below 0")
        if array.dtype == np.float32 and not np.isfinite(array).all():
            raise self._misfit(f"{spec.name!r} with values that are no numbers")
        return rows

    def _misfit(self, what: str) -> ModelAnswerError:
        logger.error("model %s answered with %s", self._model.name, what)
        return ModelAnswerError(self._model.name, f"answered with {what}")


def call_failure(name: str, error: ModelCallError, timeout_s: float, param: str | None = None) -> ApiError:
    """The error for a client whose model `name` could not be called, or failed, with the field that it was given."""
    if isinstance(error, InputTooLargeError):
        what = f"The input of the model {name!r}"
        return TooLargeError(error.limit, ROOM_OF_INPUTS, what=what, param=param)
    if isinstance(error, ModelTimeoutError):
        return DeadlineError(f"The model {name!r} has not answered within {timeout_s:g} s.")
    if isinstance(error, NoStreamsError):
        return OverloadedError(f"The model {name!r} cannot be used: {error}.", code="model_unavailable")
    logger.warning("a call of model %s failed: %s", name, error)
    if isinstance(error, ModelUnavailableError):
        return OverloadedError(f"The model {name!r} is not loaded (any more).", code="model_unavailable")
    if _UNEXPECTED in str(error):
        return EngineError(f"The model {name!r} failed; see the server's log.")
    said = str(error).removeprefix(f"the model '{name}': ")
    return EngineError(f"The model {name!r} failed: {said}")


def _tensor(spec: TensorSpec, rows: Sequence[Array], *, batched: bool) -> Array:
    """Rows of equal length as one tensor."""
    # The last dimension has the elements, others are 1.
    ones = (1,) * (len(spec.dims) - 1)
    # Audio may be a hundred megabytes.
    stacked = rows[0][np.newaxis] if len(rows) == 1 else np.stack(rows)
    stacked = stacked.astype(_NUMPY[spec.data_type], copy=False)
    count, length = stacked.shape
    return stacked.reshape((count, *ones, length) if batched else (*ones, length))
