"""Folder of the processes of one tritonserver, for sockets and files that no other user may see, replace or take first.

All models of a server find the same one without asking anybody: it is named after the tritonserver's process, with a
part that no other user can guess. So nobody can take the name before the first model does, and afterwards the folder's
owner and mode (0700) keep others out.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from openai_bls.core.processes.identity import process_identity, process_secret

# In memory: a write to a file on a disk can wait for the disk.
SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "openai_bls-sockets-"
_NOT_OURS = (errno.ELOOP, errno.ENOTDIR, errno.EACCES, errno.EPERM)


class PrivateFolderError(OSError):
    """A folder that is not this user's alone, or that can be made nowhere; one sentence for the operator."""


def locate(owner: int) -> Path:
    """The folder of a tritonserver's processes, made if there is none; those of servers that have ended are removed.

    Args:
        owner: process id of the tritonserver.

    Raises:
        PrivateFolderError: it can be made nowhere, or is not this user's alone.
    """
    parents = list(dict.fromkeys([SHARED_MEMORY, Path(tempfile.gettempdir())]))
    name = server_name(_PREFIX, owner)
    found = next((parent / name for parent in parents if os.path.lexists(parent / name)), None)
    if found is not None:
        make(found)
        return found
    problems = []
    for parent in parents:
        try:
            make(parent / name)
        except PrivateFolderError:
            raise
        except OSError as error:
            problems.append(f"{parent}: {error.strerror}")
            continue
        remove_stale(parent, _PREFIX)
        return parent / name
    raise PrivateFolderError(
        f"there is no folder for the sockets between the models ({', '.join(problems)}): mount a volume at /dev/shm or "
        "/tmp that this user may write to"
    )


def server_name(prefix: str, owner: int) -> str:
    """Name of a folder of this user for a tritonserver, with a part that no other user can guess.

    Args:
        prefix: purpose of the folder.
        owner: process id of the tritonserver.
    """
    namespace, _, started = process_identity(owner)
    # Containers can share /dev/shm and yet number their processes each for itself.
    return f"{prefix}{os.geteuid()}-{namespace}-{owner}-{started}-{process_secret(owner)}"


def make(path: Path) -> None:
    """Make a folder for this user alone, unless it is there.

    Raises:
        PrivateFolderError: what is there is no such folder.
        OSError: it cannot be made.
    """
    os.close(_made(path))


def _made(path: Path) -> int:
    """Descriptor of the folder, which is made if it is not there; another process may be removing it meanwhile."""
    while True:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            return open_checked(path)


def open_checked(path: Path) -> int:
    """Descriptor of a folder that is this user's alone; what is opened through it is in that folder, whatever happens
    to its name.

    Raises:
        PrivateFolderError: it is no folder, a link, another user's, or open to others.
        OSError: it is not there, or cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _NOT_OURS:
            raise
        raise PrivateFolderError(_complaint(path, path.lstat())) from None
    status = os.fstat(descriptor)
    if not _is_private(status):
        os.close(descriptor)
        raise PrivateFolderError(_complaint(path, status))
    return descriptor


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[int]:
    """Keep other processes that do the same out of a folder, which is made if it is not there.

    Args:
        path: the folder.
        wait: wait for the others.

    Yields:
        A descriptor of the folder.

    Raises:
        BlockingIOError: another process is in it, and `wait` is False.
        PrivateFolderError: it is not this user's alone.
        OSError: it cannot be made.
    """
    while True:
        descriptor = _made(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if os.fstat(descriptor).st_nlink:
                yield descriptor
                return
        finally:
            os.close(descriptor)


def remove_if_empty(path: Path) -> None:
    """Remove a folder that its last user leaves."""
    with contextlib.suppress(OSError):
        path.rmdir()


def remove_stale(parent: Path, prefix: str) -> None:
    """Remove this user's folders of servers that have ended.

    Args:
        parent: folder of the folders.
        prefix: purpose of the folders, as for `server_name`.
    """
    begin = f"{prefix}{os.geteuid()}-{process_identity(os.getpid())[0]}-"
    for folder in parent.glob(f"{begin}*"):
        with contextlib.suppress(ValueError, OSError):
            pid, started, *_ = folder.name.removeprefix(begin).split("-")
            if process_identity(int(pid))[2] != started and _is_private(folder.lstat()):
                shutil.rmtree(folder, ignore_errors=True)


def _is_private(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _complaint(path: Path, status: os.stat_result) -> str:
    kind = "folder" if stat.S_ISDIR(status.st_mode) else "link" if stat.S_ISLNK(status.st_mode) else "file"
    return (
        f"{path} is a {kind} of user {status.st_uid} with the mode {stat.S_IMODE(status.st_mode):04o}, where a folder "
        f"of user {os.geteuid()} alone (0700) is needed: remove it"
    )
