"""Ports for machines on loopback."""

from __future__ import annotations

import socket

from openai_bls_vllm.multi_node.nodes import Nodes
from tests.unit.core_support import WAIT_S, free_port


def machines(nnodes: int, join_timeout_s: float = WAIT_S) -> list[Nodes]:
    """Machines on loopback, whose watch port is free."""
    while True:
        port = free_port() - 1
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return [Nodes(nnodes, rank, "127.0.0.1", port, join_timeout_s) for rank in range(nnodes)]
