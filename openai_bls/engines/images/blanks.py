"""Blank images without pixels, by which an image processor of transformers tells what it makes of a size.

How many tokens an image becomes goes by its size alone, and each class has arithmetic for it that nothing else repeats
in full. So the class itself does its work, on arrays of the right shapes in which every element is one and the same
place in memory: whatever an operation would compute, its result has the right shape and takes no memory.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

_LARGE = 1 << 16
"""Elements of an array from which zeros are blank, too, while an image processor is asked."""

MAX_PIXELS = 1 << 25
"""Pixels of an image as it is scaled: that of a thin one whose shorter side is made longer may have any number."""

_asking = threading.local()


class Picture(Image.Image):
    """Image in RGB of which only the size is known.

    Args:
        size: width and height in pixels.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self._size = size
        self._mode = "RGB"

    def load(self) -> None:
        """Nothing: there are no pixels."""

    def convert(self, *args: Any, **kwargs: Any) -> Picture:
        """The same."""
        return self

    def copy(self) -> Picture:
        """The same."""
        return self

    @property
    def __array_interface__(self) -> Any:
        """None: an array of it would be as large as the image."""
        raise AttributeError


def blank(shape: Sequence[int], dtype: Any = np.uint8) -> Blank:
    """A blank array."""
    return np.broadcast_to(np.zeros((), dtype), tuple(shape)).view(Blank)


class Blank(np.ndarray[Any, Any]):
    """Array of which only the shape and the type count. Any array that is made of it is one, too."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Nothing: there is no content."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """The result's shape, with the arithmetic done on one element."""
        if (out := kwargs.pop("out", None)) is not None:
            return out[0]
        if method == "reduce":
            return _reduced(ufunc, inputs[0], kwargs)
        if method != "__call__":
            return NotImplemented
        arrays = [np.asarray(one) if isinstance(one, Blank) else one for one in inputs]
        kwargs.pop("where", None)
        result = ufunc(*map(_first, arrays), **kwargs)
        return blank(np.broadcast_shapes(*map(np.shape, arrays)), result.dtype)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """The result's shape, of functions that would copy; those that give views do so of a blank array."""
        made = _SHAPES.get(func)
        return super().__array_function__(func, types, args, kwargs) if made is None else made(*args, **kwargs)

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Blank:
        """The same in another type."""
        return blank(self.shape, dtype)

    def copy(self, order: Any = "C") -> Blank:
        """The same."""
        return self

    def clip(self, *args: Any, **kwargs: Any) -> Blank:  # type: ignore[override]
        """The same."""
        return self


def _first(value: Any) -> Any:
    """One element of an array, with as many dimensions; any other value as it is."""
    return value[(slice(0, 1),) * value.ndim] if isinstance(value, np.ndarray) else value


def _reduced(ufunc: Any, array: Any, kwargs: dict[str, Any]) -> Any:
    whole = np.asarray(array)
    result = ufunc.reduce(_first(whole), **kwargs)
    shape = _shape_without(whole.shape, kwargs.get("axis", 0), keep=bool(kwargs.get("keepdims")))
    return blank(shape, result.dtype) if shape else result


def _shape_without(shape: tuple[int, ...], axis: Any, *, keep: bool) -> tuple[int, ...]:
    axes = range(len(shape)) if axis is None else [one % len(shape) for one in np.atleast_1d(axis)]
    if keep:
        return tuple(1 if at in axes else size for at, size in enumerate(shape))
    return tuple(size for at, size in enumerate(shape) if at not in axes)


def _concatenated(arrays: Sequence[Any], axis: int | None = 0, **more: Any) -> Any:
    if axis is None:
        return blank((sum(map(np.size, arrays)),), np.result_type(*arrays))
    first = np.shape(arrays[0])
    axis %= len(first)
    if any(np.shape(one)[:axis] + np.shape(one)[axis + 1 :] != first[:axis] + first[axis + 1 :] for one in arrays):
        raise ValueError("all the input array dimensions except for the concatenation axis must match exactly")
    length = sum(np.shape(one)[axis] for one in arrays)
    return blank((*first[:axis], length, *first[axis + 1 :]), np.result_type(*arrays))


def _stacked(arrays: Sequence[Any], axis: int = 0, **more: Any) -> Any:
    shapes = {np.shape(one) for one in arrays}
    if len(shapes) != 1:
        raise ValueError("all input arrays must have the same shape")
    shape = list(shapes.pop())
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, len(arrays))
    return blank(shape, np.result_type(*arrays))


def _padded(array: Any, pad_width: Any, *args: Any, **kwargs: Any) -> Any:
    widths = np.broadcast_to(pad_width, (array.ndim, 2)).tolist()
    if min(map(min, widths)) < 0:
        raise ValueError("index can't contain negative values")
    return blank([size + sum(width) for size, width in zip(array.shape, widths, strict=True)], array.dtype)


def _repeated(array: Any, repeats: Any, axis: int | None = None) -> Any:
    shape = [array.size] if axis is None else list(array.shape)
    axis = axis or 0
    shape[axis] = shape[axis] * repeats if np.ndim(repeats) == 0 else int(np.sum(repeats))
    return blank(shape, array.dtype)


def _tiled(array: Any, reps: Any) -> Any:
    reps = tuple(np.atleast_1d(reps).tolist())
    rank = max(len(reps), array.ndim)
    shape, times = (1,) * (rank - array.ndim) + array.shape, (1,) * (rank - len(reps)) + reps
    return blank([size * count for size, count in zip(shape, times, strict=True)], array.dtype)


def _like(array: Any, *args: Any, dtype: Any = None, shape: Any = None, **more: Any) -> Any:
    return blank(array.shape if shape is None else np.atleast_1d(shape).tolist(), dtype or array.dtype)


def _chosen(condition: Any, *values: Any) -> Any:
    return blank(np.broadcast_shapes(*map(np.shape, (condition, *values))), np.result_type(*values))


_SHAPES: dict[Any, Callable[..., Any]] = {
    np.concatenate: _concatenated,
    np.stack: _stacked,
    np.vstack: lambda arrays, **more: _concatenated([np.atleast_2d(one) for one in arrays], 0),
    np.pad: _padded,
    np.repeat: _repeated,
    np.tile: _tiled,
    np.zeros_like: _like,
    np.ones_like: _like,
    np.empty_like: _like,
    np.full_like: lambda array, value, *args, **more: _like(array, *args, **more),
    np.broadcast_to: lambda array, shape, *args, **more: blank(np.atleast_1d(shape).tolist(), array.dtype),
    np.copy: lambda array, *args, **more: array,
    np.where: _chosen,
    np.clip: lambda array, *args, **more: array,
}


class _Numpy:
    """numpy for the modules of image processors: what would drop a blank array's class, or allocate it, does not."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def asarray(value: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        """`numpy.asarray`."""
        if isinstance(value, Blank):
            return value if dtype is None else value.astype(dtype)
        if _are_blank(value):
            return _stacked_deep(value)
        return np.asarray(value, dtype, *args, **kwargs)

    @staticmethod
    def array(value: Any, dtype: Any = None, **kwargs: Any) -> Any:
        """`numpy.array`."""
        if isinstance(value, Blank) or _are_blank(value):
            return _Numpy.asarray(value, dtype)
        return np.array(value, dtype, **kwargs)

    @staticmethod
    def ascontiguousarray(value: Any, *args: Any, **kwargs: Any) -> Any:
        """`numpy.ascontiguousarray`."""
        return value if isinstance(value, Blank) else np.ascontiguousarray(value, *args, **kwargs)

    @staticmethod
    def zeros(shape: Any, dtype: Any = float, *args: Any, **kwargs: Any) -> Any:
        """`numpy.zeros`; blank while an image processor is asked, if it is large."""
        if getattr(_asking, "now", False) and math.prod(np.atleast_1d(shape).tolist()) > _LARGE:
            return blank(np.atleast_1d(shape).tolist(), dtype)
        return np.zeros(shape, dtype, *args, **kwargs)


def _are_blank(value: Any) -> bool:
    """True for a list of blank arrays, or of such lists."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, Blank)


def _stacked_deep(value: Any) -> Any:
    return value if isinstance(value, np.ndarray) else _stacked([_stacked_deep(one) for one in value])


_numpy = _Numpy()


def teach(image_processor: Any) -> None:
    """Let an image processor take blank images; what it does with others stays as it is.

    Args:
        image_processor: one of transformers, on numpy.
    """
    transforms = importlib.import_module("transformers.image_transforms")
    for kind in type(image_processor).__mro__:
        names = vars(sys.modules[kind.__module__])
        if not kind.__module__.startswith("transformers."):
            continue
        for name, value in list(names.items()):
            if value is np:
                names[name] = _numpy
            elif value is transforms.resize:
                names[name] = _resized(transforms.resize)
    plain = image_processor.process_image

    @functools.wraps(plain)
    def process_image(image: Any, *args: Any, **kwargs: Any) -> Any:
        # As of any image in RGB: channels first.
        return blank((3, image.height, image.width)) if isinstance(image, Picture) else plain(image, *args, **kwargs)

    image_processor.process_image = process_image


def _resized(plain: Callable[..., Any]) -> Callable[..., Any]:
    """transformers' `resize`, which knows the shape of a blank image."""

    @functools.wraps(plain)
    def resize(image: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(image, Blank):
            return plain(image, size, *args, **kwargs)
        height, width = map(int, size)
        if min(height, width) <= 0:
            # Pillow's words.
            raise ValueError("height and width must be > 0")
        if height * width > MAX_PIXELS:
            raise ValueError(f"one would be scaled up to {width} x {height} pixels; at most {MAX_PIXELS} are taken")
        given, wanted = (kwargs.get(name) or "channels_first" for name in ("input_data_format", "data_format"))
        channels = image.shape[0 if given == "channels_first" else -1]
        shape = (channels, height, width) if wanted == "channels_first" else (height, width, channels)
        return blank(shape, image.dtype)

    return resize


@contextlib.contextmanager
def asking() -> Iterator[None]:
    """Large zeros are blank on this thread."""
    _asking.now = True
    try:
        yield
    finally:
        _asking.now = False
