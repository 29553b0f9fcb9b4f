"""Client processes, and one measurement with them."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import multiprocessing
import signal
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from types import TracebackType

from benchmarks import cpu
from benchmarks.stats import ClientReport, Measurement, Trace, analyse, measurement, merge
from benchmarks.target import Plan


def exit_on_sigterm() -> None:
    """Let SIGTERM unwind the stack, so that client processes and servers are stopped."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def make_requests(plan: Plan) -> tuple[list[Trace], float]:
    """Carry out `plan` in this process; the traces, and the CPU seconds it took.

    Raises:
        OSError: the server cannot be reached.
    """
    # The traces are many objects that live until the end: nothing for the collector to find.
    gc.collect()
    gc.disable()
    try:
        before = time.process_time()
        traces = _run(plan)
        return traces, time.process_time() - before
    finally:
        gc.enable()


def _run(plan: Plan) -> list[Trace]:
    if plan.target.api == "grpc":
        from benchmarks.client_grpc import run_grpc as run
    else:
        from benchmarks.client_http import run_http as run
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.run(run(plan))
    import uvloop

    return uvloop.run(run(plan))


def _client(plan: Plan) -> ClientReport:
    """The work of a client process."""
    traces, cpu_s = make_requests(plan)
    return analyse(traces, plan, cpu_s)


class Clients:
    """Client processes that are kept from one measurement to the next."""

    def __init__(self, count: int = 1) -> None:
        # A pool of one for each, so that every process gets its share of every plan.
        context = multiprocessing.get_context("spawn")
        self._pools = [ProcessPoolExecutor(1, mp_context=context) for _ in range(count)]

    def drive(self, plan: Plan) -> ClientReport:
        """Carry out `plan`, divided among the processes.

        Raises:
            OSError: the server cannot be reached.
        """
        return merge([future.result() for future in self.start(plan)])

    def start(self, plan: Plan) -> list[Future[ClientReport]]:
        """Begin to carry out `plan`, divided among the processes; one report of each is to come."""
        plans = divided(plan, len(self._pools))
        return [pool.submit(_client, part) for pool, part in zip(self._pools, plans, strict=False)]

    def __enter__(self) -> Clients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)


def divided(plan: Plan, parts: int) -> list[Plan]:
    """`plan` in at most `parts` shares, none of them empty, with different prompts."""
    parts = min(parts, plan.concurrency, plan.requests)
    return [
        replace(
            plan,
            concurrency=_share(plan.concurrency, i, parts),
            requests=_share(plan.requests, i, parts),
            seed=plan.seed * parts + i,
        )
        for i in range(parts)
    ]


def _share(total: int, index: int, parts: int) -> int:
    return total // parts + (index < total % parts)


def measure(clients: Clients, path: str, plan: Plan, server_pid: int | None) -> Measurement:
    """Drive `plan` once and measure.

    Args:
        path: the name of the target in tables.
        server_pid: the tritonserver; None leaves its CPU time out.

    Raises:
        OSError: the server cannot be reached.
    """
    if server_pid is None:
        return measurement(path, plan.concurrency, clients.drive(plan), None)
    before, machine_before = cpu.sample_tree(server_pid), cpu.machine_seconds()
    report = clients.drive(plan)
    used, machine = cpu.sample_tree(server_pid).since(before), cpu.machine_seconds() - machine_before
    return measurement(path, plan.concurrency, report, used, machine)
