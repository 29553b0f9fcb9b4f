"""Headless machine of an engine over several: vLLM's workers, without a scheduler, a socket or requests.

As `vllm serve --headless` does, and besides: it waits until the first machine is there, ends when that one does, and
lets a stop wait for it, since the first machine's requests need these workers to their end.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from importlib import import_module
from multiprocessing import connection
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from openai_bls.core.manifest import EngineLoadError, first_line
from openai_bls.core.processes.folder import note_shared_memory
from openai_bls_vllm.multi_node.nodes import Nodes
from openai_bls_vllm.multi_node.watch import Link

logger = logging.getLogger(__name__)

_KILL_S = 5.0
"""Seconds that workers are given to end before they are killed; one in a collective operation does not end."""


class Workers(NamedTuple):
    """Processes of vLLM on this machine, loaded."""

    executor: object
    """Lives as long as they do."""
    sentinels: list[int]
    """File descriptors, each readable once its process has ended."""


def start_workers(config: Any) -> Workers:
    """Start vLLM's workers of this machine. Blocks until all machines have loaded.

    Args:
        config: `VllmConfig`.

    Raises:
        Exception: vLLM's own.
    """
    module = import_module("vllm.v1.executor.multiproc_executor")
    executor = module.MultiprocExecutor(config, monitor_workers=False)
    return Workers(executor, [worker.proc.sentinel for worker in executor.workers])


def run(nodes: Nodes, start: Callable[[], Workers]) -> NoReturn:
    """Run this machine's workers until the first machine's engine ends, and end this process then.

    Call it on the main thread of a separate process: it handles signals. The exit status is 0 if the first machine
    ended in an orderly way, and 1 if it is gone.

    Args:
        nodes: the machines; this is not the first.
        start: starts the workers, as children of this process.

    Raises:
        EngineLoadError: the first machine does not come or refuses, or vLLM cannot load, or a worker has died; one
            sentence.
    """
    if nodes.node_rank == 0:
        raise EngineLoadError("a headless machine has a node_rank from 1 on: machine 0 serves the engine")
    link = Link(nodes)
    # Taken by whoever ends this process: the main thread, or the one that follows the first machine.
    ending = threading.Lock()
    follower = threading.Thread(target=_follow, args=(link, ending), name="vllm-first-machine", daemon=True)
    follower.start()
    _handle_signals()
    try:
        workers = start()
        note_shared_memory()
        logger.info("the workers of machine %d of %d are ready", nodes.node_rank, nodes.nnodes)
        # vLLM's own monitor takes seconds to end the other workers before it tells.
        connection.wait(workers.sentinels)
        reason = "a worker has died"
    except Exception as error:
        logger.exception("the workers of machine %d were not started", nodes.node_rank)
        reason = first_line(error)
    if not ending.acquire(blocking=False):
        # They ended because the first machine did.
        follower.join()
    link.hang_up()
    _end_workers()
    raise EngineLoadError(f"vLLM's workers of machine {nodes.node_rank} failed: {reason}")


def _follow(link: Link, ending: threading.Lock) -> None:
    """End this process when the first machine's engine ends."""
    orderly = link.wait()
    if not ending.acquire(blocking=False):
        return
    if orderly:
        logger.info("the first machine ends the engine")
    else:
        logger.error("the first machine of the engine is gone: see its log")
    _end_workers()
    # The main thread may wait in vLLM for a machine that is gone.
    logging.shutdown()
    os._exit(0 if orderly else 1)


def _end_workers() -> None:
    """End the processes that vLLM has started here, by force if they do not answer."""
    workers = multiprocessing.active_children()
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join(_KILL_S)
        if worker.is_alive():
            worker.kill()
            worker.join(_KILL_S)


def _handle_signals() -> None:
    """Let the first SIGTERM wait for the first machine; a second one, or SIGINT, ends the workers at once."""
    asked = False

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal asked
        if number == signal.SIGTERM and not asked:
            asked = True
            logger.info("stopping once the first machine does; a second SIGTERM ends the workers at once")
            return
        _end_workers()
        logging.shutdown()
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
