"""Requests in the form of vLLM's Triton backend: `sampling_parameters`, JSON text, as the tensors that say the same.

Source: vllm_backend's src/model.py and vLLM's SamplingParams. Kept: numbers may be text, and what is not given has
vLLM's default. Different, and said so: what no tensor here says is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from openai_bls.core.errors import InvalidRequestError
from openai_bls.triton_models.tensors import word_tensors
from openai_bls.triton_models.tensors.arrays import Arrays

NAME = "sampling_parameters"
# Name there → the input that says the same, and the type of its values.
_NUMBERS: dict[str, tuple[str, Callable[[Any], Any], Any]] = {
    "max_tokens": ("max_tokens", int, np.int32),
    "min_tokens": ("min_tokens", int, np.int32),
    "n": ("num_return_sequences", int, np.int32),
    "top_k": ("top_k", int, np.int32),
    "seed": ("seed", int, np.uint64),
    "temperature": ("temperature", float, np.float32),
    "top_p": ("top_p", float, np.float32),
    "repetition_penalty": ("repetition_penalty", float, np.float32),
    "presence_penalty": ("presence_penalty", float, np.float32),
    "frequency_penalty": ("frequency_penalty", float, np.float32),
}
_FLAGS = ("ignore_eos", "include_stop_str_in_output")
_WORDS = ("stop", "bad_words")
_CUT_OFF = "sampling_param_stop"
"""Input of stop strings that are cut off the text."""
_DEFAULTS = {"max_tokens": 16, "temperature": 1.0}
"""vLLM's, where they are not those of the tensors."""


def expanded(arrays: Arrays) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, str]]:
    """The tensors with those that `sampling_parameters` stands for, and the place of each of these in it.

    Raises:
        InvalidRequestError: it is not a JSON object, or has a member that is bad, given twice, or not taken here.
    """
    given = dict(arrays)
    if NAME not in given:
        return given, {}
    batch = len(given.get("text_input", [None]))
    members = {name: value for name, value in _object(given, batch).items() if value is not None}
    del given[NAME]
    for name, value in _DEFAULTS.items():
        if name not in given:
            members.setdefault(name, value)
    flags = {name: _flag(name, members.pop(name, False)) for name in _FLAGS}
    places = {}
    for name, value in members.items():
        tensor, row = _tensor(name, value, kept="stop_words" if flags["include_stop_str_in_output"] else _CUT_OFF)
        if row.size:
            places[tensor] = name
            _add(given, tensor, row, batch)
    if flags["ignore_eos"]:
        places["end_id"] = "ignore_eos"
        _add(given, "end_id", np.array([-1], np.int32), batch)
    return given, {tensor: f"{NAME}.{name}" for tensor, name in places.items()}


def _add(given: dict[str, np.ndarray[Any, Any]], tensor: str, row: np.ndarray[Any, Any], batch: int) -> None:
    if tensor in given:
        raise InvalidRequestError(f"'{tensor}' is given twice: in '{NAME}' too.", param=tensor)
    given[tensor] = np.repeat(row[np.newaxis], batch, axis=0)


def _object(arrays: Arrays, batch: int) -> dict[str, Any]:
    text = "".join(word_tensors.words(arrays, NAME, batch))
    try:
        found = msgspec.json.decode(text.encode()) if text.strip() else {}
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequestError(f"'{NAME}' is not JSON text.", param=NAME) from None
    if not isinstance(found, dict):
        raise InvalidRequestError(f"'{NAME}' must hold a JSON object.", param=NAME)
    return found


def _tensor(name: str, value: Any, kept: str) -> tuple[str, np.ndarray[Any, Any]]:
    """The tensor that a member stands for, and its row; an empty one changes nothing.

    Args:
        name: name of the member.
        value: value of the member.
        kept: tensor of stop strings.
    """
    if name in _NUMBERS:
        tensor, read, dtype = _NUMBERS[name]
        number = _number(name, value, read, dtype)
        # vLLM has -1 for "off", and 0 means the same there; officially that is greedy.
        return tensor, np.array([] if name == "top_k" and number <= 0 else [number], dtype)
    if name in _WORDS:
        words = [value] if isinstance(value, str) else value
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise _bad(name, "a string or an array of strings")
        return kept if name == "stop" else name, np.array([word.encode() for word in words], np.object_)
    raise InvalidRequestError(
        f"'{NAME}.{name}' is not taken by this model; openai_bls takes vLLM's fields, next to 'prompt'.",
        param=f"{NAME}.{name}",
        code="unsupported_parameter",
    )


def _flag(name: str, value: Any) -> bool:
    if value in ("true", "false"):
        return bool(value == "true")
    if not isinstance(value, bool):
        raise _bad(name, "true or false")
    return value


def _number(name: str, value: Any, read: Callable[[Any], Any], dtype: Any) -> Any:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = read(value)
        if read is int and float(value) != number:
            raise ValueError
        if np.issubdtype(dtype, np.integer):
            limits = np.iinfo(dtype)
            if not limits.min <= number <= limits.max:
                raise ValueError
    except (ValueError, OverflowError):
        raise _bad(name, "a whole number" if read is int else "a number") from None
    return number


def _bad(name: str, wanted: str) -> InvalidRequestError:
    return InvalidRequestError(f"'{NAME}.{name}' must be {wanted}.", param=f"{NAME}.{name}")
