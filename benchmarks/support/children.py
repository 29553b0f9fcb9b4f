"""Calls in processes of their own, which give the GPU back and may be stopped at any moment."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.support.engine import show_log


def in_child(
    seconds: float,
    function: Callable[..., Any],
    *arguments: Any,
    gpus: str = "",
    tell: Callable[[Any], None] | None = None,
) -> Any:
    """The result of a call in a process of its own; of a generator the last that it yields.

    Args:
        seconds: after which the process is killed.
        function: to call, by its import path.
        arguments: of the call.
        gpus: that the process sees, as in `CUDA_VISIBLE_DEVICES`; empty is all that this one sees.
        tell: called with each that a generator yields, so that what came before a failure is not lost.

    Raises:
        TimeoutError: it took more than `seconds`.
        RuntimeError: it raised, or the process died.
    """
    until = time.monotonic() + seconds
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_call, args=(sender, gpus, function, arguments))
    child.start()
    sender.close()
    found: Any = None
    try:
        while True:
            if not receiver.poll(max(0.0, until - time.monotonic())):
                raise TimeoutError(f"no end after {seconds:.0f} s")
            problem, going_on, found = receiver.recv()
            if problem:
                raise RuntimeError(problem)
            if not going_on:
                return found
            if tell:
                tell(found)
    except EOFError:
        child.join()
        raise RuntimeError(f"the process died with {child.exitcode}") from None
    finally:
        child.kill()
        child.join()


def attempt(seconds: float, function: Any, *arguments: Any, gpus: str = "") -> tuple[Any, str]:
    """The result of `in_child`, or the last that came of a generator, and what went wrong."""
    came: list[Any] = [None]
    try:
        return in_child(seconds, function, *arguments, gpus=gpus, tell=came.append), ""
    except (RuntimeError, TimeoutError) as error:
        return came[-1], str(error)


def _call(sender: Connection, gpus: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    show_log()
    try:
        found = function(*arguments)
        if isinstance(found, Iterator):
            last = None
            for last in found:
                sender.send(("", True, last))
            found = last
        sender.send(("", False, found))
    except Exception as error:
        traceback.print_exc()
        sender.send((f"{type(error).__name__}: {error}", False, None))
