"""Server under torture: `serve` with small disks of its own, and the processes below it."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from openai_bls.core.processes.machine import STUB_PROGRAM
from openai_bls.launcher.readiness import ask, expected_models, not_ready
from openai_bls.launcher.recovery.stub_watch import stubs
from openai_bls.launcher.tritonserver.ports import Ports
from openai_bls.triton_models.server.process import control_headers
from tests.torture.attacks import keys
from tests.torture.doors import HOST
from tests.torture.pictures import ENVIRONMENT

START_SECONDS = 300.0
STOP_SECONDS = 90.0
"""Above the launcher's own time for a stop: `_EXIT_TIMEOUT_SECONDS`, and 10 s of grace."""
_EXIT_TIMEOUT_SECONDS = 30
_BETWEEN_SIGNALS_SECONDS = 2.0
"""Two at the same time are one."""
_DISK_MB = 256
SHARED_MEMORY_MB = 64
"""Docker's default."""
_TAG = "OPENAI_BLS_TORTURE"

# A mount namespace of its own: its /dev/shm is small, the folder of its log too, and both go with it.
_MOUNTS = (
    f'mount -t tmpfs -o size={_DISK_MB}m tmpfs "$1" && mount -t tmpfs -o size={SHARED_MEMORY_MB}m tmpfs /dev/shm && '
    'shift && exec "$@"'
)


@functools.cache
def namespace_command() -> tuple[str, ...]:
    """Words before a command that give it mounts of its own; none where nobody may mount."""
    for words in (("unshare", "--mount"), ("unshare", "--mount", "--user", "--map-root-user")):
        probe = [*words, "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm"]
        with contextlib.suppress(OSError):
            if subprocess.run(probe, check=False, capture_output=True).returncode == 0:
                return words
    return ()


class Server:
    """`python -m openai_bls serve`, started again by `start` after each stop.

    Args:
        repository: the model repository.
        ports: to listen on.
        folder: for the log and the console, empty.
    """

    def __init__(self, repository: Path, ports: Ports, folder: Path) -> None:
        self.repository = repository
        self.ports = ports
        self.console_path = folder / "console.txt"
        self.has_disks = bool(namespace_command())
        self.crippled = False
        """A model has died in this tritonserver: what it had of Triton's requests never ends, nor does the model."""
        self.last_words = ""
        """Log of the last stop."""
        self._disk = folder / "disk"
        self._disk.mkdir()
        self._settings = {**ENVIRONMENT, **keys.settings(folder)}
        self._tag = f"{os.getpid()}-{ports.http}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        command = [
            *(sys.executable, "-m", "openai_bls", "serve", "--model-repository", str(self.repository)),
            *("--http-port", str(self.ports.http), "--grpc-port", str(self.ports.grpc)),
            *("--metrics-port", str(self.ports.metrics), "--openai-port", str(self.ports.openai)),
            # Faults come faster than anywhere else.
            *(
                "--restarts",
                "1000",
                "--exit-timeout",
                str(_EXIT_TIMEOUT_SECONDS),
                "--log-file",
                str(self._disk / "triton.log"),
            ),
        ]
        if self.has_disks:
            command = [*namespace_command(), "sh", "-c", _MOUNTS, "sh", str(self._disk), *command]
        self.crippled = False
        environment = {**os.environ, **self._settings, _TAG: self._tag, "OMP_NUM_THREADS": "1"}
        with self.console_path.open("ab") as console:
            self._process = subprocess.Popen(command, env=environment, stdout=console, stderr=console)
        deadline = time.monotonic() + START_SECONDS
        while missing := not_ready(HOST, self.ports, expected_models(self.repository, []), openai=True):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"not ready: {', '.join(missing)}\n{self.console()}")
            time.sleep(0.1)

    def stop(self, *, at_once: bool = False) -> int | None:
        """SIGTERM, a second one to end it `at_once`, and the exit code; None if it does not leave."""
        assert self._process is not None
        # Its disk goes with it.
        with self.inside(self._disk / "triton.log").open("rb") as log:
            log.seek(0, os.SEEK_END)
            self._process.send_signal(signal.SIGTERM)
            if at_once:
                time.sleep(_BETWEEN_SIGNALS_SECONDS)
                self._process.send_signal(signal.SIGTERM)
            try:
                return self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                return None
            finally:
                self.last_words = log.read().decode(errors="replace")

    def kept_by_triton(self) -> bool:
        """Whether the last stop waited to its timeout for what Triton loses of requests on gRPC.

        That is requests to the ensemble that run then, and requests to any model whose client cancelled them just as
        they ended: it has nothing in progress, and is never told to end.
        """
        at_the_end = self.last_words.partition("Timeout 0: Found ")[2]
        told = "not all has ended" in self.last_words
        return "Model 'ensemble' (version 1) has" in at_the_end or (
            "live models and 0 in-flight" in at_the_end and not told
        )

    def kill(self) -> None:
        """End whatever is left."""
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def running(self) -> bool:
        """Whether the launcher is there."""
        return self._process is not None and self._process.poll() is None

    def healthy(self) -> bool:
        """Whether /health says so."""
        return ask(HOST, self.ports.openai, "GET", "/health")[0] == 200

    def busy(self) -> dict[str, float]:
        """Gauges of requests and sequences that are above zero."""
        page = httpx.get(f"http://{HOST}:{self.ports.openai}/metrics", timeout=60).text
        wanted = ("requests_in_progress", "engine_sequences_running", "engine_sequences_waiting")
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name.removeprefix("openai_bls_") in wanted and sample.value
        }

    def console(self) -> str:
        """What the launcher has said."""
        return self.console_path.read_text(errors="replace")

    def waited_seconds(self, begin: int) -> float:
        """Sum of the waits before restarts that the launcher has announced since its console had `begin` characters."""
        return sum(float(found) for found in re.findall(r"again in (\d+) s$", self.console()[begin:], re.MULTILINE))

    def log_tail(self, begin: int) -> str:
        """Log from an offset on."""
        with self.inside(self._disk / "triton.log").open("rb") as file:
            file.seek(begin)
            return file.read().decode(errors="replace")

    def inside(self, path: Path) -> Path:
        """A path as the server sees it."""
        assert self._process is not None
        return Path(f"/proc/{self._process.pid}/root{path}") if self.has_disks else path

    @property
    def disk(self) -> Path:
        """The folder of the log, a disk of its own."""
        return self.inside(self._disk)

    @property
    def shared_memory(self) -> Path:
        """/dev/shm."""
        return self.inside(Path("/dev/shm"))

    def family(self) -> dict[int, str]:
        """Its processes: id → name, which is a model's for its stub."""
        wanted = f"{_TAG}={self._tag}".encode()
        found = {}
        # A child comes after its parent, but for numbers that begin again.
        for pid in sorted(int(entry.name) for entry in Path("/proc").glob("[0-9]*")):
            entry = Path(f"/proc/{pid}")
            with contextlib.suppress(OSError):
                # The decoders of images have nothing of the server's environment.
                if _parent(pid) in found or wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found[pid] = _name(entry)
        return found

    def tritonserver(self) -> int:
        """Process id of tritonserver; 0 if there is none."""
        family = self.family()
        # It forks before it runs a stub.
        return next(
            (pid for pid, name in family.items() if name == "tritonserver" and family.get(_parent(pid)) != name), 0
        )

    def stubs(self) -> dict[str, list[int]]:
        """Model → process ids of its stubs."""
        return {model: [stub.pid for stub in found] for model, found in stubs(self.tritonserver()).items()}

    def control_headers(self) -> dict[str, str]:
        """Headers of gRPC that may load models."""
        return dict(control_headers(self.tritonserver(), "grpc"))


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _name(entry: Path) -> str:
    words = (entry / "cmdline").read_bytes().split(b"\0")
    if words[0].endswith(STUB_PROGRAM.encode()):
        return Path(os.fsdecode(words[1])).parent.parent.name
    scripts = [word for word in words if word.endswith(b".py")]
    if scripts:
        return Path(os.fsdecode(scripts[0])).stem
    return "launcher" if b"serve" in words else Path(os.fsdecode(words[0])).name
