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
    """Say which tests go to one worker where several work: those of a file, and of all files that have the session's
    server, so that neither that nor a file's own is started twice."""
    shared = {item.path for item in items if "server" in getattr(item, "fixturenames", ())}
    for item in items:
        item.add_marker(pytest.mark.xdist_group("server" if item.path in shared else str(item.path)))
