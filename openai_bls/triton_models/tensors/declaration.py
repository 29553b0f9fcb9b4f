"""Declaration of a model for Triton: its tensors, its queue, and the steps of an ensemble."""

from __future__ import annotations

from typing import Literal

import msgspec

DataType = Literal["BOOL", "INT32", "INT64", "UINT64", "FP16", "FP32", "UINT8", "STRING"]


class Tensor(msgspec.Struct, frozen=True):
    """One input or output of a model."""

    name: str
    data_type: DataType
    dims: tuple[int, ...]
    """Dimensions without the batch; -1 is any length."""
    optional: bool = False
    scalar: bool = False
    """Declared with dims [1] and reshape to [], as the official config has its scalars."""
    ragged: bool = False
    """Requests whose lengths differ may be batched; only backends that know how (the C++ one) declare it."""


class Step(msgspec.Struct, frozen=True):
    """One step of an ensemble."""

    model: str
    inputs: dict[str, str]
    """The step model's input name → the ensemble's tensor name."""
    outputs: dict[str, str]


class Queue(msgspec.Struct, frozen=True):
    """Triton's own queue before a model (`dynamic_batching`)."""

    max_queue_delay_microseconds: int = 0
    """Microseconds a request waits for others, so that the model gets them together."""
    max_queue_size: int = 0
    """Requests that may wait, the next is answered 503; 0 is no limit."""


class Model(msgspec.Struct, frozen=True):
    """Declaration of a model for Triton."""

    name: str
    max_batch_size: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    backend: str = "python"
    decoupled: bool | None = None
    """True: a request has any number of responses. False: one. None leaves it out, which is one for a separate model
    and what the steps have for an ensemble."""
    queue: Queue | None = None
    """Dynamic batching; None leaves the section out: a request goes to the model when it comes."""
    instances: int = 1
    parameters: dict[str, str] = {}
    """Literal values of the `parameters` section; the model's `settings` class says what each means."""
    steps: tuple[Step, ...] = ()
    """Set for an ensemble only."""
    comment: str = ""
