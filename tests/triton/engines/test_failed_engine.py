"""One of two engines that fails to load: the other is served, and the server says which failed and why."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.commands.main import main
from openai_bls.launcher.testing import copy_models
from openai_bls.launcher.tritonserver.ports import lease_ports
from tests.triton.conftest import CHECKPOINT, ROOT
from tests.triton.conversations import HELLO
from tests.triton.operation.test_launcher import Launcher
from tests.waiting import until

pytestmark = pytest.mark.triton

TIMEOUT = 60.0
WHY = "the engine is made of cheese"
BROKEN = f"""
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        raise pb_utils.TritonModelException({WHY!r})
"""


@pytest.fixture(scope="module")
def two_engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("two") / "model_repository"
    copy_models(ROOT / "model_repository", repository)
    for name, served in (("", "first"), ("second", "second")):
        build(BuildOptions(str(CHECKPOINT), repository, "null", name=name, served_model_name=served), print)
    return repository


@pytest.fixture
def launcher(two_engines: Path) -> Iterator[Launcher]:
    with lease_ports() as leased:
        found = Launcher(two_engines, leased)
        try:
            yield found
        finally:
            for pid in found.family():
                os.kill(pid, signal.SIGKILL)
            found.process.wait()
            assert found.process.stdout is not None
            found.process.stdout.close()


@pytest.fixture(params=["tensorrt_llm_second", "preprocessing_second", "tensorrt_llm"])
def broken(two_engines: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, Path, str]]:
    file = two_engines / request.param / "1" / "model.py"
    whole = file.read_text(encoding="utf-8")
    file.write_text(BROKEN, encoding="utf-8")
    yield request.param, file, whole
    file.write_text(whole, encoding="utf-8")


def test_a_model_that_fails_to_load(broken: tuple[str, Path, str], launcher: Launcher) -> None:
    """An engine beside the default one, its preprocessing, and the default one, without which nothing is served."""
    name, file, whole = broken
    if name == "tensorrt_llm":
        launcher.read_until(f"model tensorrt_llm failed to load: {WHY}")
        assert launcher.process.wait() != 0
        return
    launcher.read_until(r"\] ready")
    assert f"warning: {name} is not served: {WHY}" in launcher.output
    v1 = f"http://127.0.0.1:{launcher.ports.openai}"
    triton = f"http://127.0.0.1:{launcher.ports.http}"

    def get(url: str) -> Any:
        return httpx.get(url, timeout=TIMEOUT).json()

    def chat(model: str) -> httpx.Response:
        body: dict[str, Any] = {"model": model, "messages": HELLO, "max_tokens": 3}
        return httpx.post(f"{v1}/v1/chat/completions", json=body, timeout=TIMEOUT)

    assert httpx.get(f"{triton}/v2/health/ready", timeout=TIMEOUT).status_code == 200
    assert chat("first").status_code == 200
    until(lambda: "failed" in get(f"{v1}/health"))
    health = get(f"{v1}/health")
    assert (health["status"], health["failed"]) == ("ok", {"tensorrt_llm_second": WHY})
    assert get(f"{v1}/v1/models")["failed"] == {"tensorrt_llm_second": WHY}
    assert chat("second").status_code in (404, 503)

    file.write_text(whole, encoding="utf-8")
    ports = launcher.ports
    assert main(["reload", "--grpc-port", str(ports.grpc), "--http-port", str(ports.http), name]) == 0
    until(lambda: chat("second").status_code == 200)
    until(lambda: "failed" not in get(f"{v1}/health"))
    assert {card["id"] for card in get(f"{v1}/v1/models")["data"]} >= {"first", "second"}
