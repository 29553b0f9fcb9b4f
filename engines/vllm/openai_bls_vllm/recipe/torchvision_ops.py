"""Makes torchvision importable beside PyTorch's build for CPUs: copied into vLLM's environment and run at its start.

Most package indexes have torchvision built for PyTorch's CUDA build alone. Its compiled operators do not load beside
that for CPUs, and its import fails where it adds to two of them. Image processors use none of these: with the two
declared, all that is written in Python works. Where the operators load, nothing is done.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from typing import Any

_NEEDS = "torchvision._meta_registrations"
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing; declares the operators when the module that needs them is looked for."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> None:
        """See `MetaPathFinder`."""
        if fullname != _NEEDS:
            return
        sys.meta_path.remove(self)
        import torch

        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                torch.library.define(f"torchvision::{name}", _SCHEMA)


sys.meta_path.insert(0, _Finder())
