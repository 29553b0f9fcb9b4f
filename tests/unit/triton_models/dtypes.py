"""dtypes of the arrays that carry declared tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from tritonclient.utils import triton_to_np_dtype

from openai_bls.triton_models.tensors.declaration import Tensor


def numpy_dtype(tensor: Tensor) -> np.dtype[Any]:
    """`object` holds bytes."""
    return np.dtype(triton_to_np_dtype("BYTES" if tensor.data_type == "STRING" else tensor.data_type))
