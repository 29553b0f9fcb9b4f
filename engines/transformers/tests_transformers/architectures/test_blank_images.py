"""Every image processor of transformers on numpy makes the same of blank images as of images with pixels, and takes no
memory for them."""

from __future__ import annotations

import importlib
import inspect
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image
from transformers.image_processing_backends import PilBackend

from openai_bls.engines.images import blanks

NOT_FOR_CHATS = ("donut", "nougat")
"""Read pages, with what costs pixels here: one scales a thin image up without end, one crops what is white."""
MODULES = sorted(Path(transformers.__file__).parent.glob("models/*/image_processing_pil_*.py"))
SIZES = ([(96, 128)], [(200, 60), (60, 200)], [(640, 480)], [(500, 3)])


def form(value: Any) -> Any:
    """Shapes and types of arrays, and what small ones of whole numbers hold."""
    if isinstance(value, list | tuple):
        return list(map(form, value))
    if not isinstance(value, np.ndarray):
        return value
    small = value.dtype.kind in "iub" and value.size < 4096
    return value.shape, str(value.dtype), value.tolist() if small else None


def outcome(processor: Any, images: list[Image.Image]) -> Any:
    try:
        return {name: form(value) for name, value in processor([images]).items()}
    except Exception as error:
        return type(error), str(error)


@pytest.mark.architectures
@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.parent.name not in NOT_FOR_CHATS], ids=lambda path: path.parent.name
)
def test_blank_images_are_as_good_as_others(path: Path) -> None:
    name = f"transformers.models.{path.parent.name}.{path.stem}"
    for kind in list(vars(importlib.import_module(name)).values()):
        if not inspect.isclass(kind) or not issubclass(kind, PilBackend) or kind.__module__ != name:
            continue
        processor = kind()
        blanks.teach(processor)
        for sizes in SIZES:
            wanted = outcome(processor, [Image.new("RGB", size) for size in sizes])
            with blanks.asking():
                assert outcome(processor, list(map(blanks.Picture, sizes))) == wanted
        tracemalloc.start()
        with blanks.asking():
            outcome(processor, [blanks.Picture((4090, 4090))] * 4)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 32 << 20
