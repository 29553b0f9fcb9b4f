"""Faults: what is broken on purpose, one thing at a time, and how it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from openai_bls.launcher.recovery.reload import reload_models
from openai_bls.triton_models.tensors.models import MODELS
from tests.torture.doors import HOST
from tests.torture.server import Server

_PAUSE_SECONDS = 0.5
_FULL_SECONDS = 5.0
_LONG_STOP_SECONDS = 30.0
"""Above the two seconds after which the launcher kills a stopped process."""
_FIRST = 7
_STUBS = tuple(name for name, model in MODELS.items() if not model.steps)


@dataclass(frozen=True)
class Fault:
    """Something to break."""

    name: str
    inject: Callable[[Server], str]
    """Breaks it, and says what has come of it."""
    disk: bool = False
    """It needs disks of the server's own."""
    lasting: bool = False
    """It is over when `inject` returns; recovery counts from there."""


def _kill(model: str) -> Callable[[Server], str]:
    def inject(server: Server) -> str:
        server.crippled = True
        for pid in server.stubs().get(model, []):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return "killed"

    return inject


def _signalled(server: Server, model: str, number: signal.Signals) -> list[int]:
    pids = server.stubs().get(model, [])
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return pids


def _pause(model: str) -> Callable[[Server], str]:
    def inject(server: Server) -> str:
        _signalled(server, model, signal.SIGSTOP)
        time.sleep(_PAUSE_SECONDS)
        _signalled(server, model, signal.SIGCONT)
        return "continued"

    return inject


def _stop(model: str) -> Callable[[Server], str]:
    """Stop a model until somebody does something about it."""

    def inject(server: Server) -> str:
        server.crippled = True
        before = server.tritonserver()
        pids = _signalled(server, model, signal.SIGSTOP)
        deadline = time.monotonic() + _LONG_STOP_SECONDS
        while time.monotonic() < deadline:
            if server.tritonserver() != before:
                return "tritonserver ended"
            if not {pid for alive in server.stubs().values() for pid in alive}.intersection(pids):
                return "killed by the launcher"
            time.sleep(0.1)
        _signalled(server, model, signal.SIGCONT)
        return "nobody did anything"

    return inject


def _reload(model: str) -> Callable[[Server], str]:
    def inject(server: Server) -> str:
        lines: list[str] = []
        reload_models(f"{HOST}:{server.ports.grpc}", [model], lines.append, server.control_headers())
        stays = "still has requests" in lines[0]
        if stays and not server.crippled:
            raise RuntimeError(lines[0])
        return "loaded again; the last one stays" if stays else "loaded again"

    return inject


def _kill_server(server: Server) -> str:
    os.kill(server.tritonserver(), signal.SIGKILL)
    return "killed"


def _terminate(server: Server) -> str:
    """SIGTERM to the launcher, and a new one."""
    crippled = server.crippled
    code = server.stop()
    if code is None:
        server.kill()
    server.start()
    if code is None or (code != 0 and not crippled and not server.kept_by_triton()):
        raise RuntimeError(f"exit code {code}")
    return f"exit code {code}" + (" for what Triton has lost" if server.kept_by_triton() else "")


@contextlib.contextmanager
def _full(folder: Path) -> Iterator[None]:
    """A file that takes all there is."""
    path = folder / "full"
    block = b"\0" * 65536
    with path.open("wb", buffering=0) as file:
        size = len(block)
        while size:
            try:
                file.write(block[:size])
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 16
    try:
        yield
    finally:
        path.unlink()


def _full_disk(server: Server) -> str:
    with _full(server.disk):
        time.sleep(_FULL_SECONDS)
    return "freed"


def _full_shared_memory(server: Server) -> str:
    folder = server.shared_memory
    server.crippled = True
    with _full(folder):
        time.sleep(_FULL_SECONDS)
    return "freed"


def all_faults() -> list[Fault]:
    """Every fault once, those first that a short run should have."""
    kills = {model: Fault(f"kill -9 {model}", _kill(model)) for model in _STUBS}
    first = [
        # Before a model has died, for then the exit code is 0.
        Fault("SIGTERM", _terminate),
        kills.pop("preprocessing"),
        Fault("full disk", _full_disk, disk=True, lasting=True),
        kills.pop("tensorrt_llm"),
        Fault("pause of 0.5 s: openai_bls", _pause("openai_bls"), lasting=True),
        Fault("reload openai_bls", _reload("openai_bls")),
        kills.pop("openai_bls"),
    ]
    rest = [
        *kills.values(),
        *(Fault(f"SIGSTOP {model}", _stop(model)) for model in _STUBS),
        *(Fault(f"pause of 0.5 s: {model}", _pause(model), lasting=True) for model in _STUBS if model != "openai_bls"),
        *(Fault(f"reload {model}", _reload(model)) for model in _STUBS if model != "openai_bls"),
        Fault("full /dev/shm", _full_shared_memory, disk=True, lasting=True),
        Fault("kill -9 tritonserver", _kill_server),
    ]
    return [*first, *rest]


def wanted(words: str) -> list[Fault]:
    """Faults whose names have these words."""
    everything = all_faults()
    faults = [fault for fault in everything if words in fault.name]
    if not faults:
        raise ValueError(f"no fault is called {words!r}: there are {', '.join(fault.name for fault in everything)}")
    return faults


def order(rng: random.Random, words: str) -> Iterator[Fault]:
    """Faults without end: each once before any comes again, at first those of a short run as they stand."""
    faults = wanted(words)
    first, rest = faults[:_FIRST], faults[_FIRST:]
    rng.shuffle(rest)
    yield from (*first, *rest)
    while True:
        rng.shuffle(faults)
        yield from faults
