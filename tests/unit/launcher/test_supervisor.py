"""The supervisor: states in, models to load again out, on a clock of the test."""

from __future__ import annotations

from openai_bls.launcher.recovery.stopped_stubs import STOPPED_LOOKS, StoppedStubs
from openai_bls.launcher.recovery.supervisor import (
    SILENT_LOOKS,
    WINDOW_SECONDS,
    Backoff,
    Look,
    Stub,
    Supervisor,
)

A, B = Stub(1, 100.0), Stub(2, 100.5)


class Clock:
    """Looks at one model, one a second."""

    def __init__(self, limit: int = 5) -> None:
        self.supervisor = Supervisor(limit)
        self.now = 0.0

    def look(self, *stubs: Stub, ready: bool = True, silent: bool = False) -> list[tuple[str, float | None, list[int]]]:
        self.now += 1
        seen = Look({"echo"} if ready else set(), {"echo": stubs} if stubs else {}, {"echo"} if silent else ())
        found = self.supervisor.decide(seen, self.now)
        assert all(recovery.model == "echo" for recovery in found)
        return [(recovery.reason, recovery.wait_seconds, list(recovery.kill)) for recovery in found]


def test_a_dead_stub_is_loaded_again_once() -> None:
    clock = Clock()
    assert clock.look(A) == clock.look(A) == []
    assert clock.look() == [("has died", 0, [])]
    assert clock.look() == [], "it is being loaded"
    clock.supervisor.ended("echo")
    new = Stub(3, 105.0)
    assert clock.look(new) == clock.look(new) == []
    assert clock.look() == [("has died", 1, [])]
    clock.supervisor.ended("echo")
    assert clock.look() == [], "it may be about to start"
    assert clock.look() == [("has died", 2, [])], "it died before it was ever seen"


def test_a_model_that_dies_before_the_first_look() -> None:
    clock = Clock()
    clock.supervisor = Supervisor(5, ["echo"])
    assert clock.look() == [], "it may be about to start"
    assert clock.look() == [("has died", 0, [])]


def test_one_of_two_instances() -> None:
    clock = Clock()
    assert clock.look(A, B) == []
    assert clock.look(B) == [("has died", 0, [])]


def test_models_that_are_unloaded_on_purpose() -> None:
    clock = Clock()
    assert clock.look(A) == []
    assert clock.look(A, ready=False) == clock.look(ready=False) == []
    assert clock.look(Stub(3, 109.0)) == clock.look(Stub(3, 109.0)) == []


def test_an_old_load_ends_beside_a_new_one() -> None:
    """As when a changed model is loaded without having been unloaded, auto-completed in a process of its own before."""
    clock = Clock()
    completion, new = Stub(3, 200.0), Stub(4, 203.0)
    for stubs in ([A, B], [A, B, completion], [A, B], [A, B, new], [A, new], [new]):
        assert clock.look(*stubs) == []
    assert clock.look() == [("has died", 0, [])]


def test_models_without_a_stub_are_nobodys() -> None:
    clock = Clock()
    assert clock.look() == clock.look(silent=True) == []


def test_what_hangs_is_killed() -> None:
    clock = Clock()
    for _ in range(SILENT_LOOKS - 1):
        assert clock.look(A, B, silent=True) == []
    assert clock.look(A, B) == [], "it has gone on"
    for _ in range(SILENT_LOOKS - 1):
        assert clock.look(A, B, silent=True) == []
    assert clock.look(A, B, silent=True) == [("does not answer", 0, [1, 2])]


def test_a_stopped_stub_that_was_killed() -> None:
    supervisor = Supervisor(5)
    stopped = Stub(2, 100.5, stopped=True)
    for _ in range(2 * STOPPED_LOOKS):
        assert supervisor.decide(Look({"echo"}, {"echo": [A, stopped]}), 0) == []
    (found,) = supervisor.decide(Look({"echo"}, {"echo": [A]}, killed={"echo"}), 0)
    assert (found.reason, found.wait_seconds) == ("has been stopped", 0)


def test_stopped_stubs_are_counted_by_looks_in_a_row() -> None:
    """A pause, and a process that goes on and is stopped again, are no fault."""
    found = StoppedStubs()
    for _ in range(STOPPED_LOOKS - 1):
        assert found.look([1, 2]) == []
    assert found.look([2]) == [2]
    for _ in range(STOPPED_LOOKS - 1):
        assert found.look([1]) == []
    assert found.look([]) == []
    assert not found.any


def test_a_model_that_is_being_loaded_may_be_silent() -> None:
    clock = Clock()
    for _ in range(2 * SILENT_LOOKS):
        assert clock.look(A, ready=False, silent=True) == []


def test_what_does_not_load_is_tried_again_up_to_the_limit() -> None:
    clock = Clock(limit=3)
    clock.look(A)
    assert clock.look() == [("has died", 0, [])]
    for wait in (1, 2, None):
        clock.supervisor.ended("echo", "no room")
        assert clock.look(ready=False) == [("does not load: no room", wait, [])]
    assert clock.look(ready=False) == [], "it is left alone"
    clock.look(A)
    assert clock.look() == [("has died", None, [])]
    assert clock.look() == clock.look() == clock.look() == [], "it is left alone"
    clock.now += WINDOW_SECONDS
    assert clock.look(B) == [], "somebody has loaded it"
    assert clock.look() == [("has died", 0, [])]


def test_backoff() -> None:
    backoff = Backoff(8)
    assert [backoff.next(0) for _ in range(9)] == [0, 1, 2, 4, 8, 16, 32, 60, None]
    assert backoff.next(WINDOW_SECONDS + 1) == 0
    assert Backoff(0).next(0) is None


def test_loads_without_cpu_time_do_not_count_but_for_too_many_in_a_row() -> None:
    backoff = Backoff(2)
    assert [backoff.next(0, starved=True) for _ in range(4)] == [0, 0, 0, 0]
    assert backoff.next(0) == 1
    assert [backoff.next(0, starved=starved) for starved in (True, False)] == [0, None]
