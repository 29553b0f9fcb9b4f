"""Values of official input tensors that all rows of a batch share, and refusals by name."""

from __future__ import annotations

from typing import Any

from openai_bls.core.errors import InvalidRequestError
from openai_bls.triton_models.tensors.arrays import Arrays


def unsupported(name: str, neutral: tuple[Any, ...] = ()) -> InvalidRequestError:
    """Refusal of an input or output by name.

    Args:
        name: name of the input or output.
        neutral: values that change nothing.
    """
    allowed = f"; it may be left out, or be {' or '.join(map(str, neutral))}" if neutral else ""
    return InvalidRequestError(f"'{name}' is not supported by this engine{allowed}.", param=name)


def scalar(arrays: Arrays, name: str, default: Any) -> Any:
    """The value that all rows of the batch share; `default` if it is not given.

    Raises:
        InvalidRequestError: the rows differ.
    """
    if name not in arrays:
        return default
    values = set(arrays[name].reshape(-1).tolist())
    if len(values) != 1:
        raise InvalidRequestError(f"'{name}' must have one value, the same for all rows of the batch.", param=name)
    return values.pop()
