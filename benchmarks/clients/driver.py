"""Client processes, and one measurement with them."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import multiprocessing
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from types import TracebackType

from benchmarks.clients.processes import cpu_used, machine_seconds, sample_cpu
from benchmarks.clients.stats import ClientReport, Measurement, analyse, measurement
from benchmarks.clients.target import Plan
from benchmarks.clients.traces import Trace


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
        from benchmarks.clients.grpc import run_grpc as run
    else:
        from benchmarks.clients.http import run_http as run
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.run(run(plan))
    import uvloop

    return uvloop.run(run(plan))


def _client(plan: Plan) -> ClientReport:
    """The work of a client process."""
    traces, cpu_s = make_requests(plan)
    return analyse(traces, plan, cpu_s)


class Clients:
    """A client process that is kept from one measurement to the next."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

    def drive(self, plan: Plan) -> ClientReport:
        """Carry out `plan`.

        Raises:
            OSError: the server cannot be reached.
        """
        return self._pool.submit(_client, plan).result()

    def __enter__(self) -> Clients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)


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
    before, machine_before = sample_cpu(server_pid), machine_seconds()
    report = clients.drive(plan)
    used, machine = cpu_used(before, sample_cpu(server_pid)), machine_seconds() - machine_before
    return measurement(path, plan.concurrency, report, used, machine)


class ProbeError(Exception):
    """The target does not answer as it should; the message says how."""


def warm_up(clients: Clients, plan: Plan, prompt_tokens: int) -> int:
    """Carry out `plan`; the words that make about `prompt_tokens` tokens, those of a chat template included.

    Raises:
        ProbeError: a request failed.
        OSError: the server cannot be reached.
    """
    report = clients.drive(plan)
    for failure in report.failures:
        raise ProbeError(f"{plan.target.api}: {failure}")
    if plan.target.dialect != "openai":
        return plan.prompt_words
    return max(1, plan.prompt_words - round(report.prompt_tokens / report.requests) + prompt_tokens)
