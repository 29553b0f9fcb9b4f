"""Programs that tests run and pip does not bring."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.paths import CACHE


def tool(*names: str) -> str:
    """Path of the first of these programs that is there; without any the test is left out, in CI it fails."""
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        sentence = f"{' or '.join(names)} is not on PATH; on Debian: sudo .ci/install-tools"
        if os.environ.get("OPENAI_BLS_TESTS_NEED_TOOLS"):
            pytest.fail(sentence)
        pytest.skip(sentence)
    return path


def compiled(source: Path, *command: str | Path, to: Sequence[str], patience_s: float) -> Path:
    """Folder with what a compiler makes of a source, kept for the next run of the tests.

    Args:
        source: file that is compiled, the last argument.
        command: compiler and its options.
        to: options that name the output, with {} for its folder.
        patience_s: seconds until the test fails.
    """
    compiler = Path(command[0]).resolve().stat()
    told = (source.read_bytes(), command, to, compiler.st_size, compiler.st_mtime_ns)
    folder = CACHE / hashlib.sha256(repr(told).encode()).hexdigest()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            making = folder.with_suffix(".making")
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            words = [*command, *(word.format(making) for word in to), source]
            subprocess.run(words, check=True, timeout=patience_s)
            making.rename(folder)
    return folder
