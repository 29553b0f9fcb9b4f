"""Tensors of a request as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray[Any, Any]]
"""Arrays by the names of their tensors."""


def is_true(arrays: Arrays, name: str) -> bool:
    """True if the tensor `name` is given, and not all of it is false."""
    return name in arrays and bool(arrays[name].any())
