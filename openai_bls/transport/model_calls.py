"""Calls of other Triton models of this server: one request of tensors, and one response or a stream of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
"""Tensors by name. BYTES tensors are arrays of `object` that hold `bytes`."""
ROOM_OF_INPUTS = "a third of what was free in /dev/shm"
"""What limits the inputs of calls, as a client is told."""


def text_array(text: str) -> Array:
    """BYTES tensor of shape [1] that holds a text as UTF-8."""
    return np.array([text.encode()], dtype=np.object_)


class ModelCallError(Exception):
    """A call that failed; the message is the model's own, or one sentence about it."""


class ModelUnavailableError(ModelCallError):
    """The model is not loaded, or is being unloaded."""


class NoStreamsError(ModelUnavailableError):
    """No model can be called by `stream` here: the server has no gRPC front end, say."""


class ModelTimeoutError(ModelCallError):
    """The model has not answered before the deadline."""


class InputTooLargeError(ModelCallError):
    """The inputs of a call take more shared memory than calls may have.

    Args:
        limit: most bytes of the inputs.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(f"inputs of more than {limit} bytes")
        self.limit = limit


class ModelCalls(Protocol):
    """Calls of models by name; every method belongs to the event loop's thread."""

    async def call(
        self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, timeout_s: float, key: str = ""
    ) -> Arrays:
        """The one response of a model that answers once. Cancelling this stops waiting, not the model.

        Args:
            model: name of the model; Triton's version policy chooses the version.
            inputs: tensors by name.
            outputs: names of the tensors wanted.
            timeout_s: seconds until the deadline.
            key: name of the API key whose share of the shared memory the inputs take.

        Raises:
            ModelCallError: it failed, is not there, or the deadline has passed.
        """

    def stream(
        self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, timeout_s: float, key: str = ""
    ) -> AsyncGenerator[Arrays, None]:
        """The responses of a decoupled model, in order. Closing the iterator cancels the request.

        Args:
            model: name of the model.
            inputs: tensors by name.
            outputs: names of the tensors wanted.
            timeout_s: seconds until the last response.
            key: as for `call`.

        Raises:
            ModelCallError: as for `call`; also in the middle of a stream.
        """
