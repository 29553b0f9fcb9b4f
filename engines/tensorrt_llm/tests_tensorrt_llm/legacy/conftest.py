"""Event loop of tests with gRPC channels, and the pace of the client's retries."""

from __future__ import annotations

import pytest

from openai_bls_tensorrt_llm.legacy import client
from tests.unit.transport.grpc.conftest import anyio_backend, one_loop, too_late

__all__ = ["anyio_backend", "one_loop", "too_late"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_RETRY_S", 0.005)
    monkeypatch.setattr(client, "_WATCH_S", 0.005)
