from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from openai_bls.launcher.recovery.stub_watch import stubs


def test_stubs_are_found_by_their_model(tmp_path: Path) -> None:
    stub = tmp_path / "triton_python_backend_stub"
    stub.symlink_to(sys.executable)
    script = tmp_path / "echo" / "1" / "model.py"
    script.parent.mkdir(parents=True)
    script.write_text("print(flush=True); input()")
    with subprocess.Popen([stub, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
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
