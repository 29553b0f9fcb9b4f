"""The CPU image's ENTRYPOINT, HEALTHCHECK and end, as Docker would run them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from openai_bls.launcher.ports import PortLease
from tests.unit.docker.replay import Image

pytestmark = pytest.mark.triton


@dataclass(frozen=True)
class Container:
    """The image, running."""

    image: Image
    process: subprocess.Popen[str]
    environment: dict[str, str]

    def health(self) -> subprocess.CompletedProcess[str]:
        """What the HEALTHCHECK says."""
        kind, *words = self.image.metadata["HEALTHCHECK"]
        assert kind == "CMD"
        command = [self.image.mapped(word) for word in words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)

    def stub(self, model: str) -> int:
        """The process id of a model's process."""
        folder = str(self.image.at("/models") / model)
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_text().split("\0")
                except OSError:
                    continue
                if words[0].endswith("triton_python_backend_stub") and any(
                    word.startswith(f"{folder}/") for word in words
                ):
                    return int(entry.name)
        raise LookupError(model)


@pytest.fixture
def container(cpu: Image) -> Iterator[Container]:
    """Up to the line with which the launcher says that everything is ready."""
    with PortLease() as lease:
        ports = {
            "OPENAI_BLS_TRITON_HTTP_PORT": str(lease.ports.http),
            "OPENAI_BLS_TRITON_GRPC_PORT": str(lease.ports.grpc),
            "OPENAI_BLS_TRITON_METRICS_PORT": str(lease.ports.metrics),
            "OPENAI_BLS_HTTP_PORT": str(lease.ports.openai),
        }
        environment = cpu.process_environment({**ports, "OMP_NUM_THREADS": "1"})
        command = [cpu.mapped(word) for word in (*cpu.metadata["ENTRYPOINT"], *cpu.metadata["CMD"])]
        with subprocess.Popen(
            command, cwd=cpu.at("."), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                assert process.stdout is not None
                lines = []
                for line in process.stdout:
                    lines.append(line)
                    if line.startswith("Listening:"):
                        break
                else:
                    pytest.fail("".join(lines[-30:]))
                yield Container(cpu, process, environment)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.communicate()


def test_it_is_healthy_until_a_model_dies_and_ends_when_told_to(container: Container) -> None:
    done = container.health()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    os.kill(container.stub("tensorrt_llm"), signal.SIGKILL)
    done = container.health()
    assert done.returncode == 1
    assert done.stdout.startswith("tensorrt_llm on port ")
    assert done.stdout.count("\n") == 1

    # The first one would wait for the dead process until the exit timeout; the second one kills.
    container.process.send_signal(signal.SIGTERM)
    container.process.send_signal(signal.SIGINT)
    output, _ = container.process.communicate()
    assert "stopping: up to 30 s for running requests" in output
    assert "killing" in output
