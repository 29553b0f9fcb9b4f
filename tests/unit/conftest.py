"""Fixtures of the unit tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.core_support import write_tokenizer

# Without a GPU our kernels run in Triton's interpreter, which must be said before they are imported.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny tokenizer with a ChatML template."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
