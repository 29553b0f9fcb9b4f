"""Turns of the engines of one server that load at the same time: side by side as far as memory goes.

An engine that loads is a listening socket at an abstract address whose name holds its memory. So the others find it in
/proc/net/unix, wait for its end by a connection, and nothing is left behind by a process that is killed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from openai_bls.core.memory import available_bytes
from openai_bls.engines.load_memory import LoadMemory
from openai_bls.transport.ipc import frames

logger = logging.getLogger(__name__)

_PLACE = "loading"
_SOCKETS = Path("/proc/net/unix")
_WAITING_LOADS = 128
_MIB, _GIB = 1 << 20, 1 << 30
# An address has at most 107 characters.
_NAME_LENGTH = 30


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
    """
    folder = frames.address(_PLACE, server_pid)
    mark = f"{folder}/{memory.host_bytes // _MIB}/{int(memory.on_gpu)}/{os.getpid():x}/{model[:_NAME_LENGTH]}"
    told = False
    while True:
        with _alone(f"{folder}-turn"):
            others = _loads(folder)
            obstacle = _obstacle(memory, others, free_bytes)
            if not obstacle:
                claim = _listen(mark)
                break
        if not told:
            logger.info("%s waits for %s to load: %s", model, " and ".join(load.model for load in others), obstacle)
            told = True
        _wait_for_end([load.address for load in others])
    with claim:
        yield


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


def _loads(folder: str) -> list[_Load]:
    found = []
    prefix = f"@{folder[1:]}/"
    for line in _SOCKETS.read_text(encoding="utf-8", errors="replace").splitlines():
        name = line.split(" ")[-1]
        if name.startswith(prefix):
            mib, on_gpu, _, model = name.removeprefix(prefix).split("/")
            found.append(_Load(f"\0{name[1:]}", model, LoadMemory(int(mib) * _MIB, on_gpu=on_gpu == "1")))
    # A connection that waits has the name, too.
    return list(dict.fromkeys(found))


@contextlib.contextmanager
def _alone(address: str) -> Iterator[None]:
    """Let one process at a time look at the loads and add its own."""
    while True:
        try:
            lock = _listen(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            _wait_for_end([address])
            continue
        with lock:
            yield
        return


def _listen(address: str) -> socket.socket:
    listener = frames.new_socket()
    try:
        listener.bind(address)
        listener.listen(_WAITING_LOADS)
    except BaseException:
        listener.close()
        raise
    return listener


def _wait_for_end(addresses: list[str]) -> None:
    """Wait until one of the sockets at `addresses` is closed, which ends the connections that it has not accepted."""
    with contextlib.ExitStack() as stack:
        watched = select.poll()
        for address in addresses:
            connection = stack.enter_context(frames.new_socket())
            try:
                connection.connect(address)
            except OSError:
                return  # it has just ended
            watched.register(connection, select.POLLIN)
        watched.poll()
