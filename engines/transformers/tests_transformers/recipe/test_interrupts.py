"""Ctrl-C while the self-test's server imports the engine: no traceback of the imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import contextlib, multiprocessing, signal, sys
from openai_bls_transformers.recipe.self_test import interrupts_held

def main():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["slow"])
    process = context.Process(target=print, args=("ran",))
    with interrupts_held() if sys.argv[1] == "held" else contextlib.nullcontext():
        process.start()
    process.join()
    # The builder itself hears it as before.
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])

if __name__ == "__main__":
    main()
"""
SLOW = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


def ran(folder: Path, how: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(folder / "program.py"), how],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_interrupt_in_the_imports(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "program.py").write_text(PROGRAM)
    done = ran(tmp_path, "held")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
    assert "KeyboardInterrupt" in ran(tmp_path, "not held").stderr
