"""Turns of the engines of one server that load at the same time: side by side as far as memory goes.

An engine that loads is a listening socket in the server's private folder, whose name holds its memory. So the others
find it there, wait for its end by a connection, and remove what a process that was killed has left.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from openai_bls.core.machine.memory import available_bytes
from openai_bls.core.manifest import EngineLoadError
from openai_bls.core.processes import private_folder
from openai_bls.engines.plugin import LoadMemory
from openai_bls.transport.ipc import sockets
from openai_bls.transport.ipc.peers import ForeignPeerError

logger = logging.getLogger(__name__)

_PREFIX = "loading-"
_MIB, _GIB = 1 << 20, 1 << 30
_NAME_LENGTH = 30
_UNUSUAL = re.compile(r"[^A-Za-z0-9_.-]")
_numbers = itertools.count()


class _Load(NamedTuple):
    """A load that has begun."""

    address: str
    model: str
    memory: LoadMemory


@contextlib.contextmanager
def turn(
    server_pid: int, model: str, memory: LoadMemory, free_bytes: Callable[[], int] = available_bytes
) -> Iterator[None]:
    """Wait until the engine fits beside those that are loading, and count as one of them within the block.

    An engine alone never waits: whether it fits is its load's to say. What the others need counts in full, although
    they have taken a part of it already, so that an engine rather waits than fails.

    Args:
        server_pid: process id of the tritonserver.
        model: name of the Triton model.
        memory: memory that the load takes.
        free_bytes: asks for the free memory of this machine.

    Raises:
        EngineLoadError: there can be no folder that no other user may write to.
    """
    words = [
        memory.host_bytes // _MIB,
        int(memory.on_gpu),
        os.getpid(),
        next(_numbers),
        _UNUSUAL.sub("_", model)[:_NAME_LENGTH],
    ]
    told = False
    while True:
        try:
            folder = private_folder.locate(server_pid)
            # One process at a time looks at the loads and adds its own.
            with private_folder.locked(folder) as descriptor:
                others = _loads(folder, descriptor)
                obstacle = _obstacle(memory, others, free_bytes)
                if not obstacle:
                    mark = folder / (_PREFIX + "+".join(map(str, words)))
                    claim = sockets.bind(descriptor, mark.name)
                    break
        except OSError as error:
            raise EngineLoadError(str(error)) from None
        if not told:
            logger.info("%s waits for %s to load: %s", model, " and ".join(load.model for load in others), obstacle)
            told = True
        _wait_for_end([load.address for load in others])
    try:
        yield
    finally:
        claim.close()
        sockets.unlink(str(mark))


def _obstacle(memory: LoadMemory, others: list[_Load], free_bytes: Callable[[], int]) -> str:
    """Reason why the engine must not load beside `others`; empty if it may."""
    if not others:
        return ""
    if memory.on_gpu and any(load.memory.on_gpu for load in others):
        return "the size of a KV cache goes by what is free of the GPU"
    taken, free = sum(load.memory.host_bytes for load in others), free_bytes()
    if memory.host_bytes and memory.host_bytes + taken > free:
        return (
            f"it takes up to {memory.host_bytes / _GIB:.1f} GiB, the others {taken / _GIB:.1f} GiB, and"
            f" {free / _GIB:.1f} GiB are free"
        )
    return ""


def _loads(folder: Path, descriptor: int) -> list[_Load]:
    """Loads of this server; what killed ones have left is removed. With the folder's lock."""
    found = []
    for path in folder.glob(f"{_PREFIX}*"):
        if not sockets.is_bound(descriptor, path.name):
            path.unlink(missing_ok=True)
            continue
        mib, on_gpu, _, _, model = path.name.removeprefix(_PREFIX).split("+", 4)
        found.append(_Load(str(path), model, LoadMemory(int(mib) * _MIB, on_gpu=on_gpu == "1")))
    return found


def _wait_for_end(addresses: list[str]) -> None:
    """Wait until one of the sockets at `addresses` is closed, which ends the connections that it has not accepted."""
    with contextlib.ExitStack() as stack:
        watched = select.poll()
        for address in addresses:
            try:
                connection = stack.enter_context(sockets.connect(address))
            except (OSError, ForeignPeerError):
                return  # it has just ended
            watched.register(connection, select.POLLIN)
        watched.poll()
