"""Watch over the stubs of a running server: looks once a second, and loads again over gRPC what has died or hangs.

A second thread kills what a signal has stopped (`stopped_stubs`), by what the kernel says alone: an answer of a server
with a stopped process takes seconds.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from openai_bls.core.processes.machine import STUB_COMM
from openai_bls.launcher.checks import OPENAI_MODEL
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.readiness import ask
from openai_bls.launcher.recovery.abandoned_stubs import AbandonedStubs
from openai_bls.launcher.recovery.stopped_stubs import LOOK_SECONDS, StoppedStubs
from openai_bls.launcher.recovery.supervisor import Look, Recovery, Stub, Supervisor
from openai_bls.triton_models.server.process import NoGrpcError, control_headers, grpc_address

if TYPE_CHECKING:
    from collections.abc import Callable

_INTERVAL_SECONDS = 1.0
_READY_TOO_EVERY = 10
"""Looks of which one looks for given-up stubs of ready models too."""
_RELOAD = "openai_bls.launcher.recovery.reload"
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def stubs(server: int) -> dict[str, list[Stub]]:
    """Live stubs of the tritonserver with that process id, by model."""
    found: dict[str, list[Stub]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            stub = _stub(server, int(entry.name))
            if stub is not None:
                # Its first argument is <repository>/<model>/<version>/model.py.
                path = Path(os.fsdecode((entry / "cmdline").read_bytes().split(b"\0")[1]))
                found.setdefault(path.parent.parent.name, []).append(stub)
    return found


def _stub(server: int, pid: int) -> Stub | None:
    """A process, if it is a live stub of the tritonserver; raises OSError if it has gone."""
    # The name in parentheses may hold spaces and parentheses.
    name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    state, parent, *fields = rest.split()
    if int(parent) != server or state in "ZX" or not name.endswith(f"({STUB_COMM}"):
        return None
    return Stub(pid, int(fields[17]) / _TICKS_PER_SECOND, stopped=state == "T")


class StubWatch:
    """Thread that watches over one server until it is closed.

    Args:
        server: process id of the tritonserver.
        http: host and port of its HTTP front end.
        openai: host and port of /v1, and whether it speaks HTTPS; None where there is none.
        limit: most restarts of a model within ten minutes.
        tell: takes a line for the operator.
        restarted: called with the name of each model that was loaded again.
    """

    def __init__(
        self,
        server: int,
        http: tuple[str, int],
        openai: tuple[str, int, bool] | None,
        limit: int,
        tell: Callable[[str], None],
        restarted: Callable[[str], None],
    ) -> None:
        self._server = server
        self._http = http
        self._openai = openai
        self._tell = tell
        self._restarted = restarted
        self._abandoned = AbandonedStubs()
        self._ended: SimpleQueue[tuple[str, str | None]] = SimpleQueue()
        self._closing = threading.Event()
        self._due = threading.Event()
        """The next look is due at once."""
        self._stubs = stubs(server)
        """Live stubs at the last look, by model."""
        self._ready: set[str] = set()
        """Ready models at the last look."""
        self._looks = 0
        self._killed: set[str] = set()
        """Models of which a stopped process has been killed, until they are loaded again."""
        # Daemons: what the server does not answer must not keep the launcher.
        self._supervisor = Supervisor(limit, self._stubs)
        threading.Thread(target=self._run, name="stub-watch", daemon=True).start()
        if limit:
            threading.Thread(target=self._watch_stops, name="stop-watch", daemon=True).start()

    def close(self) -> None:
        """Begin nothing any more."""
        self._closing.set()
        self._due.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            begun = time.monotonic()
            self._due.clear()
            while not self._ended.empty():
                self._supervisor.ended(*self._ended.get())
            look = self._look()
            for recovery in self._supervisor.decide(look, time.monotonic()) if look is not None else []:
                self._killed.discard(recovery.model)
                threading.Thread(target=self._recover, args=(recovery,), name=recovery.model, daemon=True).start()
            self._due.wait(max(0.0, begun + _INTERVAL_SECONDS - time.monotonic()))

    def _watch_stops(self) -> None:
        """Kill stubs that stay stopped; the next look finds them dead."""
        stopped = StoppedStubs()
        while not self._closing.wait(LOOK_SECONDS):
            models = {stub.pid: model for model, found in self._stubs.items() for stub in found}
            was_any = stopped.any
            for pid in stopped.look([pid for pid in models if self._is_stopped(pid)]):
                self._killed.add(models[pid])
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                self._due.set()
            if stopped.any and not was_any:
                # Meanwhile what a recovery takes a second to import.
                threading.Thread(target=importlib.import_module, args=[_RELOAD], daemon=True).start()

    def _is_stopped(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            stub = _stub(self._server, pid)
            return stub is not None and stub.stopped
        return False

    def _look(self) -> Look | None:
        """The server as it is; None if it does not tell."""
        # The index comes last: a model that is being unloaded is not ready before its stubs end.
        silent, seen = self._silent(), stubs(self._server)
        self._stubs = seen
        # Asking the kernel costs a file of each thread of the server. A model that is ready can have a stub that is
        # given up only where it is being loaded again, by somebody else.
        looked_at = seen
        if self._looks % _READY_TOO_EVERY and not self._abandoned.any:
            looked_at = {model: found for model, found in seen.items() if model not in self._ready}
        self._looks += 1
        for model in self._abandoned.kill(self._server, looked_at):
            self._tell(f"tritonserver waits for the end of a process of {model}; killing it")
        status, body = ask(*self._http, "POST", "/v2/repository/index", control_headers(self._server, "http"))
        if status != 200:
            return None
        self._ready = {model["name"] for model in json.loads(body) if model.get("state") == "READY"}
        return Look(self._ready, seen, silent, set(self._killed))

    def _silent(self) -> list[str]:
        """Models that give no answer, as far as /health knows."""
        if self._openai is None:
            return []
        host, port, tls = self._openai
        status, body = ask(host, port, "GET", "/health", tls=tls)
        if status is None:
            return [OPENAI_MODEL]
        try:
            return [name for name, state in json.loads(body)["models"].items() if state == "silent"]
        except (ValueError, LookupError, TypeError, AttributeError):
            return []

    def _recover(self, recovery: Recovery) -> None:
        # Here, since gRPC is heavy.
        from openai_bls.launcher.recovery.reload import recover_model

        model, wait = recovery.model, recovery.wait_seconds
        if wait is None:
            self._tell(f"{model} {recovery.reason}; it is left alone after too many restarts")
            return
        self._tell(f"{model} {recovery.reason}; loading it again" + (f" in {wait:.0f} s" if wait else ""))
        if self._closing.wait(wait):
            return
        begun = time.monotonic()
        # By now the process ids may be those of others.
        alive = {stub.pid for stub in stubs(self._server).get(model, [])}
        for pid in alive.intersection(recovery.kill):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        failure = None
        try:
            recover_model(grpc_address(self._server), model, control_headers(self._server, "grpc"))
        except (LaunchError, NoGrpcError) as error:
            failure = str(error)
        if self._closing.is_set():
            return
        if failure is None:
            self._restarted(model)
            self._tell(f"{model} is loaded again ({time.monotonic() - begun:.1f} s)")
        self._ended.put((model, failure))
