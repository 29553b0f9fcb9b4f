from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from openai_bls.launcher.recovery.stub_watch import StubWatch, stubs


@contextlib.contextmanager
def running(folder: Path, model: str, code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like a stub of this one."""
    stub = folder / "triton_python_backend_stub"
    if not stub.exists():
        stub.symlink_to(sys.executable)
    script = folder / model / "1" / "model.py"
    script.parent.mkdir(parents=True)
    script.write_text(f"print(flush=True); {code}")
    with subprocess.Popen([stub, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_what_is_stopped_is_killed_without_the_servers_help(tmp_path: Path) -> None:
    """No port answers here, as a server with a stopped process may not. A process that only has no CPU time lives."""
    nothing = ("127.0.0.1", 9)
    with running(tmp_path, "echo", "input()") as stopped, running(tmp_path, "busy", "exec('while True: pass')") as busy:
        os.sched_setscheduler(busy.pid, os.SCHED_IDLE, os.sched_param(0))
        stopped.send_signal(signal.SIGSTOP)
        watch = StubWatch(os.getpid(), nothing, None, 5, print, print)
        assert stopped.wait(60) == -signal.SIGKILL
        assert busy.poll() is None
        watch.close()


def test_stubs_are_found_by_their_model(tmp_path: Path) -> None:
    with running(tmp_path, "echo", "input()") as process:
        (found,) = stubs(os.getpid())["echo"]
        assert (found.pid, found.stopped) == (process.pid, False)
        assert 0 <= time.clock_gettime(time.CLOCK_BOOTTIME) - found.started < 600
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        (stopped,) = stubs(os.getpid())["echo"]
        assert (stopped.pid, stopped.started, stopped.stopped) == (found.pid, found.started, True)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert "echo" not in stubs(os.getpid()), "a zombie is dead"
