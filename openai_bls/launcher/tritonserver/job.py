"""Interface of a job that starts one tritonserver per rank; engines bring jobs (`launcher.jobs`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class JobLog(Protocol):
    """Reader of the log of a job."""

    def feed(self, line: str) -> None:
        """Take one line in."""

    def reason(self) -> str | None:
        """One line on why the job ended, or None if the log does not say."""


class Job(Protocol):
    """Job that starts one tritonserver per rank."""

    @property
    def program(self) -> str:
        """Name of the program that starts the ranks, for messages."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def notes(self) -> Sequence[str]:
        """Sentences for the operator."""

    def command(self, server: Sequence[str], prefix: str) -> list[str]:
        """Command of the job.

        Args:
            server: the command of rank 0, less what differs from rank to rank.
            prefix: beginning of the names of all shared-memory regions.
        """

    def summary(self) -> str:
        """One line for the operator on what is started, with the notes."""

    def log(self) -> JobLog:
        """Reader of the job's log, at its start."""
