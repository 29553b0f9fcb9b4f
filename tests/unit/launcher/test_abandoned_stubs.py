"""Detection of stubs that their server has given up, on processes of the test."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from openai_bls.launcher.recovery.abandoned_stubs import ABANDONED_LOOKS, AbandonedStubs, awaited_children


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def test_a_child_that_is_waited_for() -> None:
    awaited, other = sleeper(), sleeper()
    waiter = threading.Thread(target=awaited.wait)
    try:
        assert not awaited_children(os.getpid()) & {awaited.pid, other.pid}
        waiter.start()
        while awaited.pid not in awaited_children(os.getpid()):
            assert waiter.is_alive()
        found = AbandonedStubs()
        looks = [found.look(os.getpid(), [awaited.pid, other.pid]) for _ in range(ABANDONED_LOOKS)]
        assert looks == [[]] * (ABANDONED_LOOKS - 1) + [[awaited.pid]]
        # What is waited for, but no stub, is not looked at.
        assert found.any
        assert found.look(os.getpid(), [other.pid]) == []
        assert not found.any
        # It begins again once it was not waited for.
        assert found.look(os.getpid(), [awaited.pid]) == []
    finally:
        for process in (awaited, other):
            process.kill()
        waiter.join()
        other.wait()


def test_a_process_that_is_gone() -> None:
    gone = sleeper()
    gone.kill()
    gone.wait()
    assert awaited_children(gone.pid) == set()
