"""Declaration of a `preprocessing` that is called by BLS: the tensors in its config.pbtxt, and their arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from openai_bls.core import config_pbtxt
from openai_bls.transport.model_calls import Array, Arrays

# Values of required inputs about which a prompt says nothing.
_NEUTRAL: dict[str, Any] = {
    "QUERY": b"",
    "REQUEST_OUTPUT_LEN": 1,
    "DECODER_QUERY": b"",
    "BAD_WORDS_DICT": b"",
    "STOP_WORDS_DICT": b"",
    "PROMPT_REQUEST": b"",
}
_DTYPES = {"TYPE_STRING": np.object_, "TYPE_INT32": np.int32, "TYPE_INT64": np.int64, "TYPE_UINT64": np.uint64}


class _Input(NamedTuple):
    """An input tensor."""

    dtype: Any
    dims: tuple[int, ...]
    optional: bool


class PreprocessingModel:
    """Tensors of a `preprocessing`, by the official names.

    Args:
        folder: folder of the model.

    Raises:
        ValueError: it cannot be called as a preprocessing; one sentence.
    """

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        try:
            config = config_pbtxt.read(folder / "config.pbtxt")
        except (OSError, ValueError) as error:
            raise self._error(f"its config.pbtxt cannot be read ({error})") from None
        for policy in config.get("model_transaction_policy", []):
            if isinstance(policy, dict) and config_pbtxt.text(policy, "decoupled") == "true":
                raise self._error("it is decoupled, and a preprocessing answers once")
        self._batched = config_pbtxt.text(config, "max_batch_size", "0") != "0"
        self._inputs = {
            config_pbtxt.text(entry, "name"): self._input(entry)
            for entry in config.get("input", [])
            if isinstance(entry, dict)
        }
        self._outputs = config_pbtxt.names(config, "output")
        if "QUERY" not in self._inputs:
            raise self._error("its config.pbtxt declares no input QUERY")
        if "INPUT_ID" not in self._outputs:
            raise self._error("its config.pbtxt declares no output INPUT_ID")
        for name, tensor in self._inputs.items():
            if not tensor.optional and name not in _NEUTRAL:
                raise self._error(f"its input {name} is not optional, and nothing is known to put there")

    def declares(self, *names: str) -> bool:
        """True if there are inputs or outputs of all these names."""
        return set(names) <= self._inputs.keys() | self._outputs

    def inputs(self, **texts: list[bytes]) -> Arrays:
        """The input tensors of a call: those of `texts`, and what else must be there."""
        arrays = {name: self._array(name, values) for name, values in texts.items()}
        for name, tensor in self._inputs.items():
            if name not in arrays and not tensor.optional:
                arrays[name] = self._array(name, [_NEUTRAL[name]])
        return arrays

    def _input(self, entry: config_pbtxt.Message) -> _Input:
        name = config_pbtxt.text(entry, "name")
        optional = config_pbtxt.text(entry, "optional") == "true"
        data_type = config_pbtxt.text(entry, "data_type")
        wrong = data_type != "TYPE_STRING" if name == "QUERY" else not optional and data_type not in _DTYPES
        if wrong:
            raise self._error(f"its input {name} is of {data_type}")
        return _Input(_DTYPES.get(data_type, np.object_), tuple(int(dim) for dim in entry.get("dims", [])), optional)

    def _array(self, name: str, values: list[Any]) -> Array:
        """One row with `values` in its last dimension."""
        tensor = self._inputs[name]
        array = np.array(values, dtype=tensor.dtype)
        leading = len(tensor.dims) - 1 + (1 if self._batched else 0)
        return array.reshape((1,) * leading + (len(values),))

    def _error(self, reason: str) -> ValueError:
        return ValueError(f"the model {self.name} cannot be called by BLS: {reason}")
