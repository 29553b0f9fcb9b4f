"""Progress bars: on a terminal they are drawn, elsewhere there is not a byte of them."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import pytest

from openai_bls.launcher import progress

CODE = """
from pathlib import Path
import sys
from openai_bls.launcher import progress
source, target = map(Path, sys.argv[1:])
with progress.bar("weights", source.stat().st_size) as bar:
    print("weights 1/1: file")
    progress.copy(source, target, bar.advance)
with progress.bar("loading", 4, "models") as bar:
    bar.reach(3)
"""


def test_nothing_in_a_pipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x" * 100)
    with progress.bar("weights", 100) as bar:
        assert not bar.shown
        sys.stdout.write("weights 1/1: file\n")
        progress.copy(tmp_path / "source", tmp_path / "target", bar.advance)
    assert capsys.readouterr() == ("weights 1/1: file\n", "")
    assert (tmp_path / "target").read_bytes() == b"x" * 100


def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x" * 3_000_000)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", COLUMNS="100")
        words = [str(tmp_path / "source"), str(tmp_path / "target")]
        os.execv(sys.executable, [sys.executable, "-c", CODE, *words])
    seen = b""
    while True:
        try:
            seen += os.read(terminal, 4096)
        except OSError:  # it has ended
            break
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, seen
    for piece in (b"weights 1/1: file", b"3.0/3.0 MB", b"3/4", b"models"):
        assert piece in seen
    assert (tmp_path / "target").stat().st_size == 3_000_000
