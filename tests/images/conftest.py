"""The images of the Dockerfile's targets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from openai_bls.launcher.tritonserver.ports import Ports, lease_ports
from tests.images.containers import Image, mounted


@pytest.fixture(scope="session")
def stand_in() -> Iterator[Image]:
    """What stands for NVIDIA's and vLLM's images."""
    with mounted("localhost/stand-in") as image:
        yield image


@pytest.fixture(scope="session")
def cpu() -> Iterator[Image]:
    with mounted("cpu") as image:
        yield image


@pytest.fixture(scope="session")
def runtime() -> Iterator[Image]:
    with mounted("runtime") as image:
        yield image


@pytest.fixture(scope="session")
def with_engine() -> Iterator[Image]:
    with mounted("with-engine") as image:
        yield image


@pytest.fixture(scope="session")
def engine() -> Iterator[Image]:
    with mounted("engine") as image:
        yield image


@pytest.fixture
def ports() -> Iterator[Ports]:
    """Free ports: the containers have the machine's network."""
    with lease_ports() as leased:
        yield leased
