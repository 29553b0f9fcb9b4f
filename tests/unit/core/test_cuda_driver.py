"""CUDA of the installed driver."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from openai_bls.core.machine import cuda_driver


@pytest.mark.parametrize(
    ("number", "failed", "found"),
    [(13_020, 0, (13, 2)), (12_090, 0, (12, 9)), (12_090, 3, None), (0, 0, None)],
)
def test_what_the_library_tells(
    monkeypatch: pytest.MonkeyPatch, number: int, failed: int, found: tuple[int, int] | None
) -> None:
    def tell(reference: Any) -> int:
        reference._obj.value = number
        return failed

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(cuDriverGetVersion=tell))
    assert cuda_driver.driver_cuda() == found


def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "_LIBRARY", "libcuda_that_is_not_there.so.1")
    assert cuda_driver.driver_cuda() is None
    # A library of that name which is none of NVIDIA's.
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    assert cuda_driver.driver_cuda() is None
