"""A check, how it can end, and running a list of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from openai_bls.launcher.smoke.session import Session

Status = Literal["ok", "not supported", "not checked", "FAILED"]
STATUSES: tuple[Status, ...] = ("ok", "not supported", "not checked", "FAILED")


class CheckFailedError(Exception):
    """The server did not do what it should; the message is one line."""


class NotSupportedError(CheckFailedError):
    """The server refused by name what its engine does not do. A failure, unless the check is of something optional."""


class NotCheckedError(Exception):
    """The check could not be made, through no fault of the server; the message says what it needs."""


class Check(msgspec.Struct, frozen=True):
    """One thing to look at."""

    name: str
    call: Callable[[Session], str | None]
    """Returns a few words on what was found, or None. Raises one of the errors above."""
    optional: bool = False
    """Engines differ in whether they do it, so a refusal by name is fine."""


class Outcome(msgspec.Struct, frozen=True):
    """How a check ended."""

    name: str
    status: Status
    detail: str
    milliseconds: int

    def line(self) -> str:
        """For people."""
        return f"{self.name:<38} {self.status:<13} {self.milliseconds:>6} ms  {self.detail}".rstrip()


def run(checks: Iterable[Check], session: Session) -> Iterator[Outcome]:
    """Make the checks one after the other, whatever the others found."""
    for check in checks:
        begin = time.monotonic()
        status, detail = _make(check, session)
        yield Outcome(check.name, status, detail, round(1000 * (time.monotonic() - begin)))


def _make(check: Check, session: Session) -> tuple[Status, str]:
    try:
        return "ok", check.call(session) or ""
    except NotSupportedError as error:
        return "not supported" if check.optional else "FAILED", str(error)
    except NotCheckedError as error:
        return "not checked", str(error)
    except CheckFailedError as error:
        return "FAILED", str(error)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        # An answer of another shape than the contract's.
        return "FAILED", f"the answer has an unexpected shape: {type(error).__name__}: {error}"


def count(outcomes: Iterable[Outcome]) -> dict[Status, int]:
    """How many ended in which way."""
    counts: dict[Status, int] = dict.fromkeys(STATUSES, 0)
    for outcome in outcomes:
        counts[outcome.status] += 1
    return counts


def summary(outcomes: list[Outcome]) -> str:
    """One line on all of them."""
    counts = count(outcomes)
    return f"{len(outcomes)} checks: " + ", ".join(f"{counts[status]} {status}" for status in STATUSES)
