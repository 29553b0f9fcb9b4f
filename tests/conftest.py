"""For all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Without a GPU our kernels run in Triton's interpreter (the language's, not the server's), which must be said before
# anything imports it.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests go to one worker where several work: all that share the session's server, and those of a file."""
    for item in items:
        shares = "server" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("server" if shares else str(item.path)))
