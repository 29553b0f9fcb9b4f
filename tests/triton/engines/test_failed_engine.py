"""One of two engines that fails to load: the other is served, and the server says which failed and why."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
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
def start(two_engines: Path) -> Iterator[Callable[..., Launcher]]:
    launchers: list[Launcher] = []
    with lease_ports() as leased:

        def begin(*extra: str) -> Launcher:
            launchers.append(Launcher(two_engines, leased, *extra))
            return launchers[-1]

        yield begin
        for launcher in launchers:
            for pid in launcher.family():
                os.kill(pid, signal.SIGKILL)
            launcher.process.wait()
            assert launcher.process.stdout is not None
            launcher.process.stdout.close()


CASES = {
    "tensorrt_llm_second": ("first", "second"),
    "preprocessing_second": ("first", "second"),
    "tensorrt_llm": ("second", "first"),
}


@pytest.fixture
def spoil(two_engines: Path) -> Iterator[Callable[[str], Callable[[], None]]]:
    """Spoils a model; what it gives mends it."""
    wholes: dict[Path, str] = {}

    def mend() -> None:
        for file, whole in wholes.items():
            file.write_text(whole, encoding="utf-8")

    def begin(name: str) -> Callable[[], None]:
        file = two_engines / name / "1" / "model.py"
        wholes[file] = file.read_text(encoding="utf-8")
        file.write_text(BROKEN, encoding="utf-8")
        return mend

    yield begin
    mend()


@pytest.mark.parametrize("name", CASES)
def test_a_model_that_fails_to_load(
    spoil: Callable[[str], Callable[[], None]], start: Callable[..., Launcher], name: str
) -> None:
    """An engine beside the default one, its preprocessing, and the default one."""
    served, lost = CASES[name]
    engine = "tensorrt_llm" if lost == "first" else "tensorrt_llm_second"
    mend = spoil(name)
    launcher = start()
    launcher.read_until(r"\] ready")
    assert f"warning: {name} is not served: {WHY}" in launcher.output
    v1 = f"http://127.0.0.1:{launcher.ports.openai}"
    triton = f"http://127.0.0.1:{launcher.ports.http}"

    def get(url: str) -> Any:
        return httpx.get(url, timeout=TIMEOUT).json()

    def chat(**model: str) -> httpx.Response:
        body: dict[str, Any] = {"messages": HELLO, "max_tokens": 3, **model}
        return httpx.post(f"{v1}/v1/chat/completions", json=body, timeout=TIMEOUT)

    assert httpx.get(f"{triton}/v2/health/ready", timeout=TIMEOUT).status_code == 200
    assert chat(model=served).status_code == 200
    until(lambda: "failed" in get(f"{v1}/health"))
    health = get(f"{v1}/health")
    assert (health["status"], health["failed"]) == ("ok", {engine: WHY})
    assert get(f"{v1}/v1/models")["failed"] == {engine: WHY}
    assert chat(model=lost).status_code in (404, 503)
    # Nobody else answers for the default engine.
    assert chat().status_code == (200 if served == "first" else 503)

    mend()
    ports = launcher.ports
    assert main(["reload", "--grpc-port", str(ports.grpc), "--http-port", str(ports.http), name]) == 0
    until(lambda: chat(model=lost).status_code == 200)
    until(lambda: "failed" not in get(f"{v1}/health"))
    assert chat().json()["model"] == "first"
    assert {card["id"] for card in get(f"{v1}/v1/models")["data"]} >= {"first", "second"}


@pytest.mark.parametrize(
    ("names", "extra"),
    [
        (("openai_bls",), ()),
        (("tensorrt_llm", "tensorrt_llm_second"), ()),
        # Without /v1 the other models are ready.
        (("tensorrt_llm", "preprocessing_second"), ("--openai-port", "0")),
    ],
)
def test_nothing_is_left_to_be_served(
    spoil: Callable[[str], Callable[[], None]],
    start: Callable[..., Launcher],
    names: tuple[str, ...],
    extra: tuple[str, ...],
) -> None:
    """What all engines need has failed, or each of them."""
    for name in names:
        spoil(name)
    launcher = start(*extra)
    launcher.read_until(f"model {names[0]} failed to load: {WHY}")
    assert launcher.process.wait() != 0
