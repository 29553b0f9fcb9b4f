"""Watch over the machines of one engine: a TCP connection from each machine to the first, held as long as both live.

vLLM notices the death of a process of another machine by a collective operation that breaks, which is late, or by none,
if the engine is idle or the network is silent. Here the end of a connection is the end of its machine; a machine that
vanishes without one is noticed after `_SILENCE_S`.

The hello is a mark, the number of the machine and how many there are. The answer is one line: empty, or why not. Then
nothing is sent but `_GOODBYE`, by the first machine when it ends in an orderly way.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from openai_bls.core.manifest import EngineLoadError
from openai_bls_vllm.multi_node.nodes import Nodes

logger = logging.getLogger(__name__)

_SILENCE_S = 20
_HELLO_S = 10.0
_RETRY_S = 2.0
_SAY_S = 30.0
"""Seconds between two log lines about machines that are waited for."""
_MARK = b"openai_bls node\n"
_HELLO = struct.Struct(f"!{len(_MARK)}sII")
_MAX_ANSWER_BYTES = 1024
_GOODBYE = b"."
_NOT_LOADED = 2
"""Exit status of an engine's process whose engine could not be loaded."""


class Gathering:
    """The first machine's end: waits for all others, then tells of the first that is gone.

    Args:
        nodes: the machines; this is the first.

    Raises:
        EngineLoadError: the port is taken.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._on_lost: Callable[[str], None] | None = None
        self._changed = threading.Condition()
        self._joined: dict[int, socket.socket] = {}
        self._closed = False
        self._lost = ""
        try:
            self._listener = _listen(nodes.watch_port)
        except OSError as error:
            raise EngineLoadError(
                f"port {nodes.watch_port}, at which the engine's machines tell that they are there, cannot be had "
                f"({error.strerror}): choose another master_port, which is the one before it, on all machines"
            ) from None
        threading.Thread(target=self._accept, name="vllm-nodes", daemon=True).start()

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Call `on_lost`, instead of the one before, with one sentence when a machine is gone: once, on any thread."""
        with self._changed:
            self._on_lost = on_lost
            lost = self._lost
        if lost:
            on_lost(lost)

    def wait(self) -> None:
        """Wait until every machine has come.

        Raises:
            EngineLoadError: one has not come in time, or has gone again.
        """
        seconds = self._nodes.join_timeout_s
        until = time.monotonic() + seconds
        with self._changed:
            while missing := self._missing():
                left = until - time.monotonic()
                if self._lost:
                    raise EngineLoadError(self._lost)
                if left <= 0:
                    raise EngineLoadError(
                        f"{_machines(missing)} of {self._nodes.nnodes} did not come within {seconds:.0f} s: start "
                        f"`openai-bls engine --headless` there, and let it reach port {self._nodes.watch_port} here"
                    )
                if not self._changed.wait(min(left, _SAY_S)):
                    logger.info("waiting for %s of %d", _machines(missing), self._nodes.nnodes)

    def close(self, *, orderly: bool = True) -> None:
        """Tell all machines that the engine ends; whether because it was told to, or because it has failed."""
        with self._changed:
            self._closed = True
            joined = list(self._joined.values())
        # The thread that accepts is woken by this alone.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in joined:
            with contextlib.suppress(OSError):
                if orderly:
                    connection.sendall(_GOODBYE)
                connection.shutdown(socket.SHUT_RDWR)

    def _missing(self) -> list[int]:
        return [rank for rank in range(1, self._nodes.nnodes) if rank not in self._joined]

    def _accept(self) -> None:
        while True:
            try:
                connection, (host, *_) = self._listener.accept()
            except OSError:
                return
            # An IPv4 address, as a socket for both kinds has it.
            host = host.removeprefix("::ffff:")
            threading.Thread(target=self._serve, args=(connection, host), name="vllm-node", daemon=True).start()

    def _serve(self, connection: socket.socket, host: str) -> None:
        with connection:
            try:
                rank = self._admit(connection)
            except (OSError, struct.error):
                rank = None
            if rank is None:
                return
            logger.info("machine %d of %d has come from %s", rank, self._nodes.nnodes, host)
            with contextlib.suppress(OSError):
                # Nothing comes but the end.
                connection.recv(1)
            with self._changed:
                if self._closed or self._lost:
                    return
                self._lost = f"machine {rank} of the engine ({host}) is gone: see its log"
                self._changed.notify_all()
                on_lost = self._on_lost
            if on_lost is not None:
                on_lost(self._lost)

    def _admit(self, connection: socket.socket) -> int | None:
        """Number of the machine that says hello; None if it is none of ours."""
        connection.settimeout(_HELLO_S)
        mark, rank, nnodes = _HELLO.unpack(_read_exactly(connection, _HELLO.size))
        if mark != _MARK:
            return None
        with self._changed:
            refusal = self._refusal(rank, nnodes)
            if not refusal:
                self._joined[rank] = connection
            self._changed.notify_all()
        connection.sendall(refusal.encode() + b"\n")
        _detect_silence(connection)
        return None if refusal else rank

    def _refusal(self, rank: int, nnodes: int) -> str:
        if nnodes != self._nodes.nnodes:
            return f"nnodes is {nnodes} here and {self._nodes.nnodes} on the first machine: give all the same"
        if not 0 < rank < nnodes:
            return f"node_rank is {rank}: the machines without the engine's socket are 1 to {nnodes - 1}"
        if rank in self._joined:
            return f"another machine has come with the node_rank {rank}: give each its own"
        return ""


def gather(nodes: Nodes) -> Gathering | None:
    """Wait for the other machines; None where there is one alone.

    A machine that is gone while vLLM loads ends this process.

    Raises:
        EngineLoadError: this is not the first machine, or another has not come in time; one sentence.
    """
    if not nodes.several:
        return None
    if nodes.node_rank:
        raise EngineLoadError(
            f"node_rank is {nodes.node_rank}, and only machine 0 serves the engine: run `openai-bls engine --headless`"
        )
    gathering = Gathering(nodes)
    try:
        gathering.wait()
    except EngineLoadError:
        gathering.close(orderly=False)
        raise
    gathering.watch(_end_process)
    return gathering


class Link:
    """Another machine's end: waits for the first machine, then tells when it is gone.

    Args:
        nodes: the machines; this is not the first.
        retry_s: time between two tries.

    Raises:
        EngineLoadError: it was not reached in time, or refuses this machine.
    """

    def __init__(self, nodes: Nodes, retry_s: float = _RETRY_S) -> None:
        self._nodes = nodes
        self._connection = self._connect(retry_s)

    def wait(self) -> bool:
        """Wait for the end of the first machine's engine; True if it was an orderly one."""
        with self._connection:
            try:
                return self._connection.recv(1) == _GOODBYE
            except OSError:
                return False

    def hang_up(self) -> None:
        """Tell the first machine that this one is gone; `wait` ends."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _connect(self, retry_s: float) -> socket.socket:
        seconds = self._nodes.join_timeout_s
        address = (self._nodes.master_addr, self._nodes.watch_port)
        began = said = time.monotonic()
        while True:
            try:
                connection = socket.create_connection(address, timeout=_HELLO_S)
            except OSError as error:
                now = time.monotonic()
                if now - began >= seconds:
                    raise EngineLoadError(
                        f"the first machine was not reached at {address[0]}:{address[1]} within {seconds:.0f} s "
                        f"({error.strerror or error}): start the engine there, and check master_addr and master_port"
                    ) from None
                if now - said >= _SAY_S:
                    said = now
                    logger.info("waiting for the first machine at %s:%d", *address)
                time.sleep(retry_s)
                continue
            return self._greet(connection)

    def _greet(self, connection: socket.socket) -> socket.socket:
        try:
            connection.sendall(_HELLO.pack(_MARK, self._nodes.node_rank, self._nodes.nnodes))
            answer = _read_line(connection)
        except OSError as error:
            connection.close()
            raise EngineLoadError(
                f"what listens at {self._nodes.master_addr}:{self._nodes.watch_port} is not the first machine of an "
                f"engine ({error.strerror or error}): check master_addr and master_port"
            ) from None
        if answer:
            connection.close()
            raise EngineLoadError(f"the first machine refuses this one: {answer}")
        _detect_silence(connection)
        return connection


def _end_process(sentence: str) -> NoReturn:
    """vLLM would wait for the machine, and its loading cannot be broken off."""
    sys.stderr.write(f"openai_bls: error: {sentence}\n")
    sys.stderr.flush()
    os._exit(_NOT_LOADED)


def _machines(ranks: list[int]) -> str:
    numbers = ", ".join(map(str, ranks))
    return f"machine{'s' if len(ranks) > 1 else ''} {numbers}"


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _detect_silence(connection: socket.socket) -> None:
    """Have the kernel end a connection whose peer has been silent for `_SILENCE_S`."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _SILENCE_S // 2),
        ("TCP_KEEPINTVL", _SILENCE_S // 4),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", _SILENCE_S * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("it hung up")
        data += part
    return data


def _read_line(connection: socket.socket) -> str:
    data = b""
    while not data.endswith(b"\n"):
        data += _read_exactly(connection, 1)
        if len(data) > _MAX_ANSWER_BYTES:
            raise ConnectionError("it answers something else")
    return data[:-1].decode(errors="replace")
