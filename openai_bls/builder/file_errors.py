"""Errors of the file system in a build, each as one sentence with a remedy."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

from openai_bls.core.manifest import BuildError

_GIB = 1 << 30
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_ERRNO = re.compile(r"\[Errno (\d+)\]")


def of_files(error: OSError, repository: Path) -> BuildError | None:
    """Sentence for an error of the build's own work on files; None if it is about no file.

    Errors that name no file are taken to be about the model repository.
    """
    number, reason, named = _told(error)
    # Of a copy the second name is the one that is written.
    path = Path(named[-1]) if named else repository
    if number in (errno.ENOSPC, errno.EDQUOT):
        return BuildError(
            f"the disk is full: {free_space(path)}; free some, or build into a repository on another disk "
            "(--model-repository)"
        )
    if not named and number not in _FORBIDDEN:
        return None
    if path.absolute().is_relative_to(repository.absolute()):
        return BuildError(
            f"the model repository cannot be changed: {reason} ({path if path.is_dir() else path.parent}): see to that "
            "folder's owner, mode and mount, or give another repository with --model-repository"
        )
    return BuildError(f"{path} cannot be read or written: {reason}")


def _told(error: OSError) -> tuple[int | None, str, list[str]]:
    """Number, message and files of an error; of `shutil.copytree`'s, those of the first file that went wrong."""
    if not isinstance(error, shutil.Error):
        return error.errno, error.strerror or str(error), [str(n) for n in (error.filename, error.filename2) if n]
    failed = error.args[0]
    if not isinstance(failed, list) or not failed:
        return None, str(error), []
    source, target, reason = failed[0]
    found = _ERRNO.search(str(reason))
    number = int(found[1]) if found else None
    return number, os.strerror(number) if number else str(reason), [str(source), str(target)]


def free_space(path: Path) -> str:
    """Words for the free space of the file system that `path` is, or would be, on."""
    folder = next((parent for parent in (path, *path.parents) if parent.is_dir()), Path("/"))
    return f"{shutil.disk_usage(folder).free / _GIB:.1f} GiB are free at {folder}"
