"""Folder of an engine's process for what it would leave behind when it is killed: temporary files, and notes of shared
memory. Its guardian removes all of that."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from openai_bls.core.manifest import EngineLoadError
from openai_bls.core.processes.machine import ENGINE_FOLDER
from openai_bls.core.processes.process_tree import marked_processes

_NOTES = "shared_memory"  # guardian.py knows the name
_SHARED_MEMORY = Path("/dev/shm")
# A path of a Unix socket has at most 107 characters; those of vLLM have 37 behind the folder's.
_LONGEST_PARENT = 50


def make(environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """A new folder, and `environ` with it as TMPDIR.

    Raises:
        EngineLoadError: there is no place for it.
    """
    parent = tempfile.gettempdir()
    try:
        folder = tempfile.mkdtemp(prefix="openai_bls-", dir=parent if len(parent) <= _LONGEST_PARENT else "/tmp")
    except OSError as error:
        raise EngineLoadError(f"no temporary folder for the engine's process: {error.strerror}") from None
    found = {**environ, "TMPDIR": folder, ENGINE_FOLDER: folder}
    # PyTorch's compiled kernels stay where they were: they are for the next process, too.
    kernels = Path(parent) / f"torchinductor_{getpass.getuser()}"
    found.setdefault("TORCHINDUCTOR_CACHE_DIR", str(kernels if _is_own(kernels) else Path(folder) / kernels.name))
    return folder, found


def _is_own(path: Path) -> bool:
    """True of a folder that no other user can have put programs into; it is made if it is not there."""
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return False


def note_shared_memory() -> None:
    """Note the shared memory that this process and those that it has started map, for the guardian to remove.

    Python's resource tracker removes some of it, unless it is killed along with them, and vLLM's own is left.
    """
    folder = os.environ.get(ENGINE_FOLDER)
    if not folder:
        return
    notes = Path(folder) / _NOTES
    notes.mkdir(exist_ok=True)
    for pid in marked_processes(folder, ENGINE_FOLDER):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
                path = Path(line[line.find("/") :]) if "/" in line else Path()
                if path.parent == _SHARED_MEMORY and path.exists():
                    (notes / path.name).touch()


def remove(folder: str) -> None:
    """Remove a folder whose guardian was killed, and the shared memory that is noted in it."""
    with contextlib.suppress(OSError):
        for note in Path(folder, _NOTES).iterdir():
            (_SHARED_MEMORY / note.name).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
