"""Log of an engine's process: its lines, one by one, as records of this process, none of which can look like two."""

from __future__ import annotations

import logging
import os
import re
import threading

# As systemd reads them at the beginning of a line.
_LEVELS = {"<3>": logging.ERROR, "<4>": logging.WARNING, "<6>": logging.INFO, "<7>": logging.DEBUG}
_MARKS = {logging.ERROR: "<3>", logging.CRITICAL: "<3>", logging.WARNING: "<4>", logging.DEBUG: "<7>"}
_ERROR = "openai_bls: error: "
_LONGEST_LINE = 4000
# Colours, and whatever else a terminal would obey.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


class LevelFormatter(logging.Formatter):
    """Format of the engine's process: the level before each line, in systemd's form."""

    def format(self, record: logging.LogRecord) -> str:
        """A record, as lines."""
        mark = _MARKS.get(record.levelno, "<6>")
        return "\n".join(mark + line for line in super().format(record).splitlines())


class LogPump:
    """Thread that takes over what an engine's process prints, until every process that may print has ended.

    Args:
        descriptor: reading end of a pipe; closed at the end.
        logger: logger that takes the lines.
    """

    def __init__(self, descriptor: int, logger: logging.Logger) -> None:
        self._descriptor = descriptor
        self._logger = logger
        self._last = ""
        self._error = ""
        self._thread = threading.Thread(target=self._run, name="engine-log", daemon=True)
        self._thread.start()

    @property
    def error(self) -> str:
        """The sentence with which the process ended; empty if it said none."""
        return self._error

    @property
    def last_line(self) -> str:
        """The last line that is no news of ours; empty if there is none."""
        return self._last

    def join(self, timeout_s: float) -> None:
        """Wait until the last line was taken in."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        rest = b""
        with os.fdopen(self._descriptor, "rb", buffering=0) as pipe:
            while data := pipe.read(1 << 16):
                # A progress bar's line ends with a carriage return.
                *lines, rest = (rest + data).replace(b"\r", b"\n").split(b"\n")
                for line in lines:
                    self._take(line)
                if len(rest) > _LONGEST_LINE:
                    self._take(rest)
                    rest = b""
        self._take(rest)

    def _take(self, raw: bytes) -> None:
        line = clean(raw)
        if not line.strip():
            return
        level = _LEVELS.get(line[:3])
        text = line if level is None else line[3:]
        if level is None or level >= logging.WARNING:
            self._last = text
        if text.startswith(_ERROR):
            # It is said again, by whoever wanted the engine.
            self._error = text.removeprefix(_ERROR)
            return
        self._logger.log(level or logging.INFO, "engine: %s", text)


def clean(raw: bytes) -> str:
    """A line without what a terminal or a reader of the log would take for more than text."""
    line = _ESCAPES.sub("", raw.decode("utf-8", "replace"))
    line = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", line)
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 1] + "…"
