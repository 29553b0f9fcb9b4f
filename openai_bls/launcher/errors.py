"""Exception of the launcher."""

from __future__ import annotations


class LaunchError(Exception):
    """The server cannot be started; the message is one line that says what to do about it."""
